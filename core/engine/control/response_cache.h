/// The response cache: ids for keys and signatures that were negotiated before, so that a report of
/// 16 bytes can replace the full description. Every rank has the same ids at the same position of
/// the dispatch stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "engine/base/hash_index.h"
#include "engine/control/key_state.h"
#include "engine/control/lru_ids.h"
#include "engine/control/wire.h"
#include "engine/control/world.h"

namespace farandole {

class ResponseCache {
 public:
  // A key_state lives as long as it has a cache id, a submission in flight or an open tally.
  [[nodiscard]] KeyState* find(const wire::KeyRef& key) const;
  [[nodiscard]] KeyState& obtain(const wire::KeyRef& key);
  /// The key_states of a set's keys, in no order.
  [[nodiscard]] std::vector<KeyState*> key_states_of(const ProcessSet& set);
  /// Forgets the key_state if it has none of the three.
  void release(KeyState& key_state);

  /// What a reference stands for; `key_state` is null if it is unknown here. Retired ids are only
  /// found with `retired_too`.
  struct Resolved {
    KeyState* key_state = nullptr;
    std::string_view group;
    const DefinitionItem* definition = nullptr;
  };
  [[nodiscard]] Resolved resolve(const wire::KeyRef& key, bool retired_too) const;
  [[nodiscard]] CanonicalSignaturePtr resolve(const wire::SignatureRef& signature,
                                              bool retired_too) const;
  /// The canonical form of a signature: the cached one if there is one.
  [[nodiscard]] CanonicalSignaturePtr canonical_of(const Signature& signature) const;
  /// The cache id of a signature's canonical form; 0: none.
  [[nodiscard]] std::uint32_t id_of(const Signature& signature) const;
  /// True if `canonical` is the canonical form of `signature`. Needs no search.
  [[nodiscard]] static bool fits(const CanonicalSignature& canonical,
                                 const Signature& signature) noexcept;

  /// The shortest reference to a key_state: its cache id, if it has one that was made for this
  /// group.
  [[nodiscard]] static wire::KeyRef reference(const KeyState& key_state, std::string_view group);

  // Entries of the stream, in its order. `position`: that of the message they are in.
  void define(KeyState& key_state, std::string_view group, std::uint64_t position);
  void define(const Signature& signature, std::uint64_t position);
  void use(KeyState& key_state) noexcept;
  void use(const CanonicalSignature& canonical) noexcept;

  void set_capacity(std::size_t capacity) noexcept { capacity_ = capacity; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// Drops ids that were retired at `position` or before: no rank below refers to them any more.
  void forget(std::uint64_t position);
  /// How many ids have been dropped so far.
  [[nodiscard]] std::uint64_t forgotten() const noexcept { return forgotten_; }
  /// How many key_states and ids are kept: for tests that this is bounded.
  [[nodiscard]] std::size_t size() const noexcept {
    return key_states_.size() + keys_.size() + signatures_.size();
  }

 private:
  void retire(DefinitionItem& item, std::uint64_t position);

  std::size_t capacity_ = 0;
  std::deque<KeyState> pool_;
  std::vector<KeyState*> free_;
  HashIndex<KeyState> key_states_;
  LruIds<Definition> keys_;
  LruIds<CanonicalSignaturePtr> signatures_;
  HashIndex<CanonicalSignature> canonicals_;  // cached ones, by content
  std::uint64_t forgotten_ = 0;
};

/// A reference that spells the key in full.
[[nodiscard]] wire::KeyRef in_full(const Key& key, std::string_view group);

}  // namespace farandole

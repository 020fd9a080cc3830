/// What a rank knows about one key: its cache id, this rank's submission, and the reports of other
/// ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/signature.h"
#include "engine/base/rank_set.h"
#include "engine/control/lru_ids.h"
#include "engine/timeline/timeline_event.h"
#include "types.h"

namespace farandole {

/// The canonical form of a signature: what ranks must agree on. It has no group name, and its first
/// dimension is 0 where the number of rows may differ. `id`: its cache id; 0: none.
struct CanonicalSignature {
  Signature signature;
  std::uint64_t hash = 0;
  std::uint32_t id = 0;
};
using CanonicalSignaturePtr = std::shared_ptr<CanonicalSignature>;

/// What some ranks have reported about a key.
struct Statement {
  CanonicalSignaturePtr canonical;
  std::string group;  ///< full name; empty: none
  RankSet ranks;
};

/// The reports of one use of a key, at a tree node or at the coordinator.
struct Tally {
  bool open = false;
  bool apart = false;     ///< tree node: further reports are forwarded rank by rank
  bool complete = false;  ///< coordinator: every member has reported or joined
  std::uint8_t size_class = 0;
  Track track = 0;  ///< coordinator: where the timeline draws this use
  RankSet reported;
  std::vector<Statement> statements;  ///< the first `said` are in use; the others keep their memory
  std::size_t said = 0;
  TimePoint since;

  /// Adds the report of `who`. True if all reports so far are equal.
  bool add(const CanonicalSignaturePtr& canonical, std::string_view group, const RankSet& who);
  void clear() noexcept;
};

struct KeyState;

/// A cache id of a key. It stands for the key and the group that it was last used in.
struct Definition {
  KeyState* key_state = nullptr;
  std::string group;
  std::uint32_t uses = 0;  ///< dispatches and failures under this id
};
using DefinitionItem = LruIds<Definition>::Item;

struct KeyState {
  Key key;
  std::uint64_t hash = 0;
  bool in_use = false;                   ///< false: in the pool, for another key
  DefinitionItem* definition = nullptr;  ///< its current cache id; null: none
  std::uint32_t definitions = 0;         ///< ids that refer to this key_state, retired ones too

  // This rank's submission in flight.
  std::uint64_t ticket = 0;         ///< 0: none
  CanonicalSignaturePtr canonical;  ///< of the last submission
  std::shared_ptr<const Signature>
      submitted;  ///< as submitted, if the canonical form leaves something out
  std::string group;
  std::uint8_t size_class = 0;
  bool published = false;
  bool waited = false;
  bool demanded = false;
  std::uint64_t exchanges = 0;  ///< how often it has been dispatched or agreed on here

  // Reports of other ranks, at tree nodes and at the coordinator.
  Tally tally;
  KeyState* older = nullptr;  ///< list of open tallies, by age
  KeyState* newer = nullptr;

  [[nodiscard]] bool idle() const noexcept {
    return definitions == 0 && ticket == 0 && !tally.open;
  }
};

/// Open tallies, oldest first.
class OpenKeys {
 public:
  void append(KeyState& key_state) noexcept;
  void prepend(KeyState& key_state) noexcept;
  void remove(KeyState& key_state) noexcept;
  [[nodiscard]] KeyState* oldest() const noexcept { return oldest_; }

 private:
  KeyState* oldest_ = nullptr;
  KeyState* newest_ = nullptr;
};

[[nodiscard]] bool same_canonical(const CanonicalSignaturePtr& one,
                                  const CanonicalSignaturePtr& other) noexcept;

}  // namespace farandole

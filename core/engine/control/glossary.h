/// The numbers of keys and signatures, the same on every rank at the same position of the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "engine/base/hash_index.h"
#include "engine/control/numbering.h"
#include "engine/control/term.h"
#include "engine/control/wire.h"
#include "engine/control/world.h"

namespace rueda {

class Glossary {
 public:
  // Terms live as long as something holds on to them: a number, a submission, a tally.
  [[nodiscard]] Term* find(const wire::KeyRef& key) const;
  [[nodiscard]] Term& obtain(const wire::KeyRef& key);
  /// All that is known of a set's keys, in no order.
  [[nodiscard]] std::vector<Term*> terms_of(const ProcessSet& set);
  /// Forgets the term if nothing holds on to it.
  void release(Term& term);

  /// What a reference means; `term` null: not known here. Numbers that were given up are understood
  /// only with `retired_too`.
  struct Resolved {
    Term* term = nullptr;
    std::string_view group;
    const DefinitionItem* definition = nullptr;
  };
  [[nodiscard]] Resolved resolve(const wire::KeyRef& key, bool retired_too) const;
  [[nodiscard]] MeaningPtr resolve(const wire::SignatureRef& signature, bool retired_too) const;
  /// The meaning of a submission: the numbered one if there is one.
  [[nodiscard]] MeaningPtr meaning_of(const Signature& signature) const;
  /// The number of a submission's meaning; 0: it has none.
  [[nodiscard]] std::uint32_t number_of(const Signature& signature) const;
  /// True if `meaning` is what meaning_of(signature) would say, found without searching.
  [[nodiscard]] static bool fits(const Meaning& meaning, const Signature& signature) noexcept;

  /// How to say a term: by number if it has one under this group.
  [[nodiscard]] static wire::KeyRef reference(const Term& term, std::string_view group);

  // Entries of the stream, applied in its order. `position`: of the message they are in.
  void define(Term& term, std::string_view group, std::uint64_t position);
  void define(const Signature& signature, std::uint64_t position);
  void use(Term& term) noexcept;
  void use(const Meaning& meaning) noexcept;

  void set_capacity(std::size_t capacity) noexcept { capacity_ = capacity; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// Nobody below says numbers any more that were given up at `position` or before.
  void forget(std::uint64_t position);
  /// How many numbers have been forgotten so far.
  [[nodiscard]] std::uint64_t forgotten() const noexcept { return forgotten_; }
  /// Everything remembered: for tests of boundedness.
  [[nodiscard]] std::size_t size() const noexcept {
    return terms_.size() + keys_.size() + signatures_.size();
  }

 private:
  void retire(DefinitionItem& item, std::uint64_t position);

  std::size_t capacity_ = 0;
  std::deque<Term> pool_;
  std::vector<Term*> free_;
  HashIndex<Term> terms_;
  Numbering<Definition> keys_;
  Numbering<MeaningPtr> signatures_;
  HashIndex<Meaning> meanings_;  // numbered ones, by content
  std::uint64_t forgotten_ = 0;
};

/// A key as a reference in full.
[[nodiscard]] wire::KeyRef in_full(const Key& key, std::string_view group);

}  // namespace rueda

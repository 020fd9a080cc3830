#include "engine/control/glossary.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <span>

#include "collectives/registry.h"

namespace rueda {

namespace {

[[nodiscard]] std::uint64_t combine(std::uint64_t seed, std::uint64_t value) noexcept {
  return mix(seed ^ (value + 0x9E3779B97F4A7C15ULL + (seed << 6)));
}

[[nodiscard]] std::uint64_t hash_of(const wire::KeyRef& key) noexcept {
  const std::uint64_t scope =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.process_set)) << 32 |
      key.generation;
  if (!key.name.empty()) return std::hash<std::string_view>{}(key.name) ^ mix(scope);
  return combine(scope + 1 + static_cast<std::uint64_t>(key.kind), key.handle);
}

[[nodiscard]] bool is(const Key& key, const wire::KeyRef& ref) noexcept {
  if (key.process_set != ref.process_set || key.generation != ref.generation) return false;
  if (key.name != ref.name) return false;
  return !key.name.empty() || (key.kind == ref.kind && key.number == ref.handle);
}

/// The extents that ranks must agree on; `first` says whether the first one is left out.
[[nodiscard]] std::span<const std::int64_t> common_extents(const Signature& signature,
                                                           bool rows_may_differ) noexcept {
  const std::span<const std::int64_t> all(signature.shape);
  return rows_may_differ && !all.empty() ? all.subspan(1) : all;
}

[[nodiscard]] std::uint64_t hash_of(const Signature& signature) noexcept {
  std::uint64_t hash = static_cast<std::uint64_t>(signature.kind) |
                       static_cast<std::uint64_t>(signature.dtype) << 8 |
                       static_cast<std::uint64_t>(signature.op) << 16 |
                       static_cast<std::uint64_t>(signature.device) << 24 |
                       static_cast<std::uint64_t>(static_cast<std::uint32_t>(signature.root)) << 32;
  hash = combine(hash, std::bit_cast<std::uint64_t>(signature.prescale));
  hash = combine(hash, std::bit_cast<std::uint64_t>(signature.postscale));
  hash = combine(hash, signature.group.size << 8 | signature.shape.size());
  for (Rank rank : signature.ranks) hash = combine(hash, static_cast<std::uint64_t>(rank));
  const bool rows_may_differ = rules_of(signature.kind).rows_may_differ;
  for (std::int64_t extent : common_extents(signature, rows_may_differ)) {
    hash = combine(hash, static_cast<std::uint64_t>(extent));
  }
  return hash;
}

[[nodiscard]] Signature reduced(const Signature& signature) {
  Signature result = signature;
  result.group.name.clear();
  if (rules_of(signature.kind).rows_may_differ && !result.shape.empty()) result.shape[0] = 0;
  return result;
}

}  // namespace

wire::KeyRef in_full(const Key& key, std::string_view group) {
  return {.process_set = key.process_set,
          .generation = key.generation,
          .kind = key.kind,
          .handle = key.number,
          .name = key.name,
          .group = group};
}

Term* Glossary::find(const wire::KeyRef& key) const {
  return terms_.find(hash_of(key), [&](const Term& term) { return is(term.key, key); });
}

Term& Glossary::obtain(const wire::KeyRef& key) {
  const std::uint64_t hash = hash_of(key);
  if (Term* known = terms_.find(hash, [&](const Term& term) { return is(term.key, key); })) {
    return *known;
  }
  if (free_.empty()) {
    pool_.emplace_back();
    free_.push_back(&pool_.back());
  }
  Term& term = *free_.back();
  free_.pop_back();
  term.key.process_set = key.process_set;
  term.key.generation = key.generation;
  term.key.name.assign(key.name);
  term.key.kind = key.kind;
  term.key.number = key.handle;
  term.hash = hash;
  term.in_use = true;
  terms_.insert(hash, &term);
  return term;
}

std::vector<Term*> Glossary::terms_of(const ProcessSet& set) {
  std::vector<Term*> found;
  terms_.for_each([&](Term& term) {
    if (term.key.process_set == set.id && term.key.generation == set.generation) {
      found.push_back(&term);
    }
  });
  return found;
}

void Glossary::release(Term& term) {
  if (!term.in_use || !term.idle()) return;
  term.in_use = false;
  terms_.erase(term.hash, &term);
  term.meaning.reset();
  term.submitted.reset();
  free_.push_back(&term);
}

Glossary::Resolved Glossary::resolve(const wire::KeyRef& key, bool retired_too) const {
  if (key.number == 0) return {.term = find(key), .group = key.group};
  const DefinitionItem* item = keys_.find(key.number);
  if (item == nullptr || !(item->live() || retired_too)) return {};
  return {.term = item->value.term, .group = item->value.group, .definition = item};
}

MeaningPtr Glossary::resolve(const wire::SignatureRef& signature, bool retired_too) const {
  if (signature.number == 0) return meaning_of(signature.full);
  const auto* item = signatures_.find(signature.number);
  if (item == nullptr || !(item->live() || retired_too)) return nullptr;
  return item->value;
}

MeaningPtr Glossary::meaning_of(const Signature& signature) const {
  const std::uint64_t hash = hash_of(signature);
  if (const Meaning* known =
          meanings_.find(hash, [&](const Meaning& meaning) { return fits(meaning, signature); })) {
    return signatures_.find(known->number)->value;
  }
  return std::make_shared<Meaning>(Meaning{.signature = reduced(signature), .hash = hash});
}

std::uint32_t Glossary::number_of(const Signature& signature) const {
  const Meaning* known = meanings_.find(
      hash_of(signature), [&](const Meaning& meaning) { return fits(meaning, signature); });
  return known == nullptr ? 0 : known->number;
}

bool Glossary::fits(const Meaning& meaning, const Signature& signature) noexcept {
  const Signature& one = meaning.signature;
  if (one.kind != signature.kind || one.dtype != signature.dtype || one.op != signature.op ||
      one.device != signature.device || one.root != signature.root ||
      one.prescale != signature.prescale || one.postscale != signature.postscale ||
      one.group.size != signature.group.size || one.shape.size() != signature.shape.size() ||
      one.ranks != signature.ranks) {
    return false;
  }
  const bool rows_may_differ = rules_of(signature.kind).rows_may_differ;
  return std::ranges::equal(common_extents(one, rows_may_differ),
                            common_extents(signature, rows_may_differ));
}

wire::KeyRef Glossary::reference(const Term& term, std::string_view group) {
  if (term.definition != nullptr && term.definition->value.group == group) {
    return {.number = term.definition->number};
  }
  return in_full(term.key, group);
}

void Glossary::define(Term& term, std::string_view group, std::uint64_t position) {
  if (term.definition != nullptr) retire(*term.definition, position);
  term.definition = &keys_.add({.term = &term, .group = std::string(group)});
  ++term.definitions;
  while (DefinitionItem* surplus = keys_.surplus(capacity_)) retire(*surplus, position);
}

void Glossary::define(const Signature& signature, std::uint64_t position) {
  const std::uint64_t hash = hash_of(signature);
  auto& item = signatures_.add(
      std::make_shared<Meaning>(Meaning{.signature = reduced(signature), .hash = hash}));
  item.value->number = item.number;
  meanings_.insert(hash, item.value.get());
  while (auto* surplus = signatures_.surplus(capacity_)) {
    Meaning& meaning = *surplus->value;
    meanings_.erase(meaning.hash, &meaning);
    meaning.number = 0;
    signatures_.retire(*surplus, position);
  }
}

void Glossary::retire(DefinitionItem& item, std::uint64_t position) {
  item.value.term->definition = nullptr;
  keys_.retire(item, position);
}

void Glossary::use(Term& term) noexcept {
  if (term.definition == nullptr) return;
  ++term.definition->value.uses;
  keys_.touch(*term.definition);
}

void Glossary::use(const Meaning& meaning) noexcept {
  if (meaning.number == 0) return;
  if (auto* item = signatures_.find(meaning.number)) signatures_.touch(*item);
}

void Glossary::forget(std::uint64_t position) {
  keys_.forget(position, [&](Definition& definition) {
    Term& term = *definition.term;
    --term.definitions;
    ++forgotten_;
    release(term);
  });
  signatures_.forget(position, [&](MeaningPtr&) { ++forgotten_; });
}

}  // namespace rueda

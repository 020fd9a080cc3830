#include "engine/control/response_cache.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <span>

#include "collectives/registry.h"

namespace farandole {

namespace {

[[nodiscard]] std::uint64_t combine(std::uint64_t seed, std::uint64_t value) noexcept {
  return mix(seed ^ (value + 0x9E3779B97F4A7C15ULL + (seed << 6)));
}

[[nodiscard]] std::uint64_t hash_of(const wire::KeyRef& key) noexcept {
  const std::uint64_t scope =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.process_set)) << 32 |
      key.generation;
  if (!key.name.empty()) return std::hash<std::string_view>{}(key.name) ^ mix(scope);
  return combine(scope + 1 + static_cast<std::uint64_t>(key.kind), key.number);
}

[[nodiscard]] bool is(const Key& key, const wire::KeyRef& ref) noexcept {
  if (key.process_set != ref.process_set || key.generation != ref.generation) return false;
  if (key.name != ref.name) return false;
  return !key.name.empty() || (key.kind == ref.kind && key.number == ref.number);
}

/// The extents that ranks must agree on: all but the first one if the number of rows may differ.
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
                       static_cast<std::uint64_t>(signature.absent) << 31 |
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
          .number = key.number,
          .name = key.name,
          .group = group};
}

KeyState* ResponseCache::find(const wire::KeyRef& key) const {
  return key_states_.find(hash_of(key),
                          [&](const KeyState& key_state) { return is(key_state.key, key); });
}

KeyState& ResponseCache::obtain(const wire::KeyRef& key) {
  const std::uint64_t hash = hash_of(key);
  if (KeyState* known = key_states_.find(
          hash, [&](const KeyState& key_state) { return is(key_state.key, key); })) {
    return *known;
  }
  if (free_.empty()) {
    pool_.emplace_back();
    free_.push_back(&pool_.back());
  }
  KeyState& key_state = *free_.back();
  free_.pop_back();
  key_state.key.process_set = key.process_set;
  key_state.key.generation = key.generation;
  key_state.key.name.assign(key.name);
  key_state.key.kind = key.kind;
  key_state.key.number = key.number;
  key_state.hash = hash;
  key_state.in_use = true;
  key_states_.insert(hash, &key_state);
  return key_state;
}

std::vector<KeyState*> ResponseCache::key_states_of(const ProcessSet& set) {
  std::vector<KeyState*> found;
  key_states_.for_each([&](KeyState& key_state) {
    if (key_state.key.process_set == set.id && key_state.key.generation == set.generation) {
      found.push_back(&key_state);
    }
  });
  return found;
}

void ResponseCache::release(KeyState& key_state) {
  if (!key_state.in_use || !key_state.idle()) return;
  key_state.in_use = false;
  key_states_.erase(key_state.hash, &key_state);
  key_state.canonical.reset();
  key_state.submitted.reset();
  key_state.exchanges = 0;
  free_.push_back(&key_state);
}

ResponseCache::Resolved ResponseCache::resolve(const wire::KeyRef& key, bool retired_too) const {
  if (key.id == 0) return {.key_state = find(key), .group = key.group};
  const DefinitionItem* item = keys_.find(key.id);
  if (item == nullptr || !(item->live() || retired_too)) return {};
  return {.key_state = item->value.key_state, .group = item->value.group, .definition = item};
}

CanonicalSignaturePtr ResponseCache::resolve(const wire::SignatureRef& signature,
                                             bool retired_too) const {
  if (signature.id == 0) return canonical_of(signature.full);
  const auto* item = signatures_.find(signature.id);
  if (item == nullptr || !(item->live() || retired_too)) return nullptr;
  return item->value;
}

CanonicalSignaturePtr ResponseCache::canonical_of(const Signature& signature) const {
  const std::uint64_t hash = hash_of(signature);
  if (const CanonicalSignature* known = canonicals_.find(
          hash, [&](const CanonicalSignature& canonical) { return fits(canonical, signature); })) {
    return signatures_.find(known->id)->value;
  }
  return std::make_shared<CanonicalSignature>(
      CanonicalSignature{.signature = reduced(signature), .hash = hash});
}

std::uint32_t ResponseCache::id_of(const Signature& signature) const {
  const CanonicalSignature* known = canonicals_.find(
      hash_of(signature),
      [&](const CanonicalSignature& canonical) { return fits(canonical, signature); });
  return known == nullptr ? 0 : known->id;
}

bool ResponseCache::fits(const CanonicalSignature& canonical, const Signature& signature) noexcept {
  const Signature& one = canonical.signature;
  if (one.kind != signature.kind || one.dtype != signature.dtype || one.op != signature.op ||
      one.device != signature.device || one.root != signature.root ||
      one.prescale != signature.prescale || one.postscale != signature.postscale ||
      one.absent != signature.absent || one.group.size != signature.group.size ||
      one.shape.size() != signature.shape.size() || one.ranks != signature.ranks) {
    return false;
  }
  const bool rows_may_differ = rules_of(signature.kind).rows_may_differ;
  return std::ranges::equal(common_extents(one, rows_may_differ),
                            common_extents(signature, rows_may_differ));
}

wire::KeyRef ResponseCache::reference(const KeyState& key_state, std::string_view group) {
  if (key_state.definition != nullptr && key_state.definition->value.group == group) {
    return {.id = key_state.definition->id};
  }
  return in_full(key_state.key, group);
}

void ResponseCache::define(KeyState& key_state, std::string_view group, std::uint64_t position) {
  if (key_state.definition != nullptr) retire(*key_state.definition, position);
  key_state.definition = &keys_.add({.key_state = &key_state, .group = std::string(group)});
  ++key_state.definitions;
  while (DefinitionItem* surplus = keys_.surplus(capacity_)) retire(*surplus, position);
}

void ResponseCache::define(const Signature& signature, std::uint64_t position) {
  const std::uint64_t hash = hash_of(signature);
  auto& item = signatures_.add(std::make_shared<CanonicalSignature>(
      CanonicalSignature{.signature = reduced(signature), .hash = hash}));
  item.value->id = item.id;
  canonicals_.insert(hash, item.value.get());
  while (auto* surplus = signatures_.surplus(capacity_)) {
    CanonicalSignature& canonical = *surplus->value;
    canonicals_.erase(canonical.hash, &canonical);
    canonical.id = 0;
    signatures_.retire(*surplus, position);
  }
}

void ResponseCache::retire(DefinitionItem& item, std::uint64_t position) {
  item.value.key_state->definition = nullptr;
  keys_.retire(item, position);
}

void ResponseCache::use(KeyState& key_state) noexcept {
  if (key_state.definition == nullptr) return;
  ++key_state.definition->value.uses;
  keys_.touch(*key_state.definition);
}

void ResponseCache::use(const CanonicalSignature& canonical) noexcept {
  if (canonical.id == 0) return;
  if (auto* item = signatures_.find(canonical.id)) signatures_.touch(*item);
}

void ResponseCache::forget(std::uint64_t position) {
  keys_.forget(position, [&](Definition& definition) {
    KeyState& key_state = *definition.key_state;
    --key_state.definitions;
    ++forgotten_;
    release(key_state);
  });
  signatures_.forget(position, [&](CanonicalSignaturePtr&) { ++forgotten_; });
}

}  // namespace farandole

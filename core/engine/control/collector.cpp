#include "engine/control/collector.h"

#include <algorithm>
#include <string>

#include "engine/base/wording.h"
#include "engine/control/wire.h"

namespace farandole {

Error malformed(const World& world, Rank from, std::string_view what) {
  return Error{
      .code = Code::Internal,
      .message = world.who(from) + " sent a malformed control message: " + std::string(what),
      .peer = from,
      .tensor = {},
      .missing = {},
      .waited_s = 0.0,
      .cause = nullptr};
}

Collector::Collector(const World& world, ResponseCache& cache)
    : world_(world),
      cache_(cache),
      seen_(world.tree().children.size(), 0),
      acknowledged_(world.tree().children.size(), false),
      awaited_(world.tree().children.size() + 1) {}

std::uint64_t Collector::seen(std::uint64_t own) const noexcept {
  for (std::uint64_t position : seen_) own = std::min(own, position);
  return own;
}

Result<void> Collector::receive(std::size_t child, std::span<const std::byte> message,
                                std::uint64_t position, TimePoint now) {
  const Rank from = world_.tree().children[child];
  wire::Reader reader(message);
  wire::Header header;
  if (!reader.header(header) || header.direction != wire::Direction::Up) {
    return malformed(world_, from, "bad header");
  }
  if (header.position < seen_[child] || header.position > position) {
    return malformed(world_, from, "it cannot be at that position of the stream");
  }
  seen_[child] = header.position;

  wire::Entry entry;
  Rank origin = from;
  Duration age{};
  while (reader.next(entry)) {
    const bool has_rank =
        entry.record != wire::Record::Age && entry.record != wire::Record::Acknowledge &&
        entry.record != wire::Record::Ready && entry.record != wire::Record::ReadyUnnamed &&
        entry.record != wire::Record::ReadyInFull;
    if (has_rank && !(world_.has(entry.rank) && world_.below(child).contains(entry.rank))) {
      return malformed(world_, from, "speaks for a rank that is not below it");
    }
    Result<void> done;
    switch (entry.record) {
      case wire::Record::Origin:
        origin = entry.rank;
        break;
      case wire::Record::Age:
        age = std::chrono::milliseconds(entry.age_ms);
        break;
      case wire::Record::Ready:
      case wire::Record::ReadyUnnamed:
      case wire::Record::ReadyInFull:
        if (!stopped_) done = receive_ready(child, entry, origin, age, now);
        break;
      case wire::Record::Join:
        if (!stopped_) done = join(entry.rank, now);
        break;
      case wire::Record::Leave:
        if (!stopped_)
          leave({.rank = entry.rank, .reason = entry.reason, .text = std::string(entry.text)});
        break;
      case wire::Record::Acknowledge:
        done = acknowledge_child(child);
        break;
      case wire::Record::Blocked:
        if (!stopped_) blocked(entry.rank, entry.position, entry.certain, entry.text, now);
        break;
      case wire::Record::Unblocked:
        if (!stopped_) unblocked(entry.rank, now);
        break;
      default:
        return malformed(world_, from, "a record that only goes down");
    }
    if (!done) return done;
  }
  if (!reader.ok()) return malformed(world_, from, "bad record");
  return {};
}

Result<void> Collector::receive_ready(std::size_t child, const wire::Entry& entry, Rank origin,
                                      Duration age, TimePoint now) {
  const Rank from = world_.tree().children[child];
  // Retired cache ids are accepted: the sender may not have seen their retirement yet.
  const CanonicalSignaturePtr canonical = cache_.resolve(entry.signature, true);
  if (canonical == nullptr) return malformed(world_, from, "unknown signature");
  const ResponseCache::Resolved resolved = cache_.resolve(entry.key, true);
  if (resolved.key_state == nullptr && entry.key.id != 0) {
    return malformed(world_, from, "unknown key");
  }
  const auto set_id =
      resolved.key_state != nullptr ? resolved.key_state->key.process_set : entry.key.process_set;
  const auto generation =
      resolved.key_state != nullptr ? resolved.key_state->key.generation : entry.key.generation;
  const ProcessSet* set = world_.find_set(set_id, generation);
  if (set == nullptr) {
    // The sender had not seen the removal of the set yet. Its operation fails when it does.
    if (world_.was_removed(set_id, generation)) return {};
    return malformed(world_, from, "unknown process set");
  }
  if (resolved.definition != nullptr && resolved.definition->live() &&
      resolved.definition->value.uses != entry.instance) {
    return malformed(world_, from,
                     "another use of " + full_name(resolved.key_state->key) + " is open");
  }
  if (!entry.whole && !set->members.contains(origin)) {
    return malformed(world_, from, "an operation of a rank outside of the process set");
  }
  if (entry.whole && set->by_child[child].empty()) {
    return malformed(world_, from, "an operation of ranks outside of the process set");
  }
  KeyState& key_state =
      resolved.key_state != nullptr ? *resolved.key_state : cache_.obtain(entry.key);
  const bool single = !entry.whole;
  const RankSet one = single ? RankSet::of(origin) : RankSet();
  const Report ready{.key_state = key_state,
                     .set = *set,
                     .canonical = canonical,
                     .group = resolved.group,
                     .size_class = entry.size_class,
                     .who = single ? one : set->by_child[child],
                     .since = now - age,
                     .aged = age > Duration::zero()};
  if (key_state.tally.reported.overlaps(ready.who)) {
    return malformed(world_, from, full_name(key_state.key) + " was reported before");
  }
  auto done = report(ready, now);
  cache_.release(key_state);
  return done;
}

void Collector::acknowledge() {
  if (own_acknowledged_) return;
  own_acknowledged_ = true;
  if (--awaited_ == 0) all_acknowledged();
}

Result<void> Collector::acknowledge_child(std::size_t child) {
  if (acknowledged_[child] || !stopped_) {
    return malformed(world_, world_.tree().children[child], "acknowledges what did not happen");
  }
  acknowledged_[child] = true;
  if (--awaited_ == 0) all_acknowledged();
  return {};
}

}  // namespace farandole

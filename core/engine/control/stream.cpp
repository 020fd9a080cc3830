#include "engine/control/stream.h"

#include <string>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/wording.h"

namespace farandole {

namespace {

constexpr std::uint8_t kCodes = static_cast<std::uint8_t>(Code::Internal) + 1;

}  // namespace

Error Stream::malformed_from_parent(std::string_view what) const {
  return malformed(world_, world_.tree().parent.value_or(world_.self()), what);
}

Result<void> Stream::receive(std::span<const std::byte> message, TimePoint now, Effects& effects) {
  wire::Reader reader(message);
  wire::Header header;
  if (!reader.header(header) || header.direction != wire::Direction::Down) {
    return malformed_from_parent("bad header");
  }
  if (header.position != position_ + 1) return malformed_from_parent("a gap in the stream");
  cache_.set_capacity(header.capacity);
  advance();
  wire::Entry entry;
  while (reader.next(entry)) {
    if (auto done = apply(reader, entry, now, effects); !done) return done;
  }
  if (!reader.ok()) return malformed_from_parent("bad record");
  cache_.forget(collector_->seen(position_));
  return {};
}

Result<void> Stream::apply(wire::Reader& reader, wire::Entry& entry, TimePoint now,
                           Effects& effects) {
  if (closed_ || (participant_.stopped() && entry.record != wire::Record::Closed)) {
    return malformed_from_parent("goes on after the shutdown");
  }
  switch (entry.record) {
    case wire::Record::DefineKey:
      cache_.define(cache_.obtain(entry.key), entry.key.group, position_);
      return {};
    case wire::Record::DefineSignature:
      cache_.define(entry.signature.full, position_);
      return {};
    case wire::Record::Dispatch:
      participant_.stream_moved(now);
      return apply_dispatch(reader, entry, now, effects);
    case wire::Record::Fail:
      world_.note_event(position_);
      participant_.stream_moved(now);
      return apply_failure(entry, effects);
    case wire::Record::Joined:
      if (!world_.has(entry.rank) || !participant_.joined()) {
        return malformed_from_parent("a join that is none");
      }
      world_.note_event(position_);
      participant_.stream_moved(now);
      participant_.all_joined();
      collector_->all_joined();
      effects.joined_last = entry.rank;
      effects.dispatches_before_join = effects.dispatches.size();
      return {};
    case wire::Record::Shutdown:
      if (!world_.has(entry.rank)) return malformed_from_parent("a shutdown by nobody");
      world_.note_event(position_);
      collector_->stop();
      participant_.stop(
          {.rank = entry.rank, .reason = entry.reason, .text = std::string(entry.text)}, effects);
      effects.shutdown_by = entry.rank;
      return {};
    case wire::Record::Closed:
      if (!participant_.stopped()) return malformed_from_parent("closed before the shutdown");
      closed_ = effects.closed = true;
      return {};
    default:
      return malformed_from_parent("a record that only goes up");
  }
}

Result<void> Stream::apply_dispatch(wire::Reader& reader, wire::Entry& entry, TimePoint now,
                                    Effects& effects) {
  ++dispatches_;
  Dispatch dispatch{
      .number = dispatches_, .process_set = entry.process_set, .entries = {}, .change = {}};
  const std::uint32_t items = entry.count;
  dispatch.entries.reserve(items);
  bool member = false;
  for (std::uint32_t i = 0; i < items; ++i) {
    if (!reader.item(entry)) return malformed_from_parent("bad record");
    const CanonicalSignaturePtr canonical = cache_.resolve(entry.signature, false);
    if (canonical == nullptr) return malformed_from_parent("unknown signature");
    const ResponseCache::Resolved resolved = cache_.resolve(entry.key, false);
    KeyState* const key_state = resolved.key_state;
    if (key_state == nullptr && entry.key.id != 0) return malformed_from_parent("unknown key");
    const ProcessSet* set =
        key_state != nullptr
            ? world_.find_set(key_state->key.process_set, key_state->key.generation)
            : world_.find_set(entry.key.process_set, entry.key.generation);
    if (set == nullptr || set->id != dispatch.process_set) {
      return malformed_from_parent("another process set");
    }
    world_.note_dispatch(*set, position_);
    cache_.use(*canonical);
    count(key_state, entry.key);
    if (set->members.contains(world_.self())) {
      member = true;
      if (auto done = participant_.dispatch(key_state, canonical, dispatch); !done) return done;
      if (key_state != nullptr)
        dispatch.entries.back().track = std::exchange(key_state->tally.track, 0);
    }
    if (key_state != nullptr) {
      cache_.use(*key_state);
      collector_->settle(*key_state);
      cache_.release(*key_state);
    }
    if (is_set_change(canonical->signature.kind)) {
      if (items != 1 || set->id != 0) return malformed_from_parent("a change of sets in a batch");
      if (auto done = change_sets(canonical->signature, dispatch, now, effects); !done) return done;
    }
  }
  if (member) effects.dispatches.push_back(std::move(dispatch));
  return {};
}

Result<void> Stream::change_sets(const Signature& signature, Dispatch& dispatch, TimePoint now,
                                 Effects& effects) {
  if (signature.kind == Kind::AddProcessSet) {
    if (!world_.check_addition(signature.ranks)) {
      return malformed_from_parent("a process set that cannot be");
    }
    const ProcessSet& set = world_.add_set(signature.ranks);
    dispatch.change = {.id = set.id,
                       .generation = set.generation,
                       .channel = set.channel,
                       .added = true,
                       .ranks = signature.ranks};
    return {};
  }
  const ProcessSet* set = world_.find_set(signature.root);
  if (set == nullptr || set->id == 0) {
    return malformed_from_parent("removes a process set that does not exist");
  }
  dispatch.change = {.id = set->id,
                     .generation = set->generation,
                     .channel = set->channel,
                     .added = false,
                     .ranks = set->members.to_vector()};
  const std::vector<KeyState*> key_states = cache_.key_states_of(*set);
  participant_.set_removed(key_states, *set, effects);
  collector_->set_removed(*set, key_states, now);
  for (KeyState* key_state : key_states) {
    collector_->settle(*key_state);
    cache_.release(*key_state);
  }
  world_.remove_set(set->id);
  return {};
}

/// Counts an operation that other ranks have submitted, also if this rank had joined and did not:
/// its next one gets the next number.
void Stream::count(const KeyState* key_state, const wire::KeyRef& key) {
  if (key_state != nullptr) {
    participant_.count(key_state->key);
  } else if (key.id == 0 && key.name.empty() && rules_of(key.kind).matched_by_count) {
    participant_.count({.process_set = key.process_set,
                        .generation = key.generation,
                        .name = {},
                        .kind = key.kind,
                        .number = key.number});
  }
}

Result<void> Stream::apply_failure(const wire::Entry& entry, Effects& effects) {
  if (entry.code >= kCodes) return malformed_from_parent("unknown code");
  const ResponseCache::Resolved resolved = cache_.resolve(entry.key, false);
  count(resolved.key_state, entry.key);
  if (resolved.key_state == nullptr) {
    // This rank does not know the key: it has joined, or is not a member of the set.
    return entry.key.id == 0 ? Result<void>() : malformed_from_parent("unknown key");
  }
  KeyState& key_state = *resolved.key_state;
  Error error{.code = static_cast<Code>(entry.code),
              .message = std::string(entry.text),
              .tensor = entry.tensor.empty() ? full_name(key_state.key) : std::string(entry.tensor),
              .missing = entry.ranks};
  participant_.fail(key_state, std::move(error), effects);
  cache_.use(key_state);
  collector_->settle(key_state);
  cache_.release(key_state);
  return {};
}

}  // namespace farandole

#include "engine/control/stream.h"

#include <string>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/names.h"

namespace rueda {

namespace {

constexpr std::uint8_t kCodes = static_cast<std::uint8_t>(Code::Internal) + 1;

}  // namespace

Error Stream::nonsense_from_above(std::string_view what) const {
  return nonsense(world_, world_.tree().parent.value_or(world_.self()), what);
}

Result<void> Stream::receive(std::span<const std::byte> message, TimePoint now, Effects& effects) {
  wire::Reader reader(message);
  wire::Header header;
  if (!reader.header(header) || header.direction != wire::Direction::Down) {
    return nonsense_from_above("bad header");
  }
  if (header.position != position_ + 1) return nonsense_from_above("a gap in the stream");
  glossary_.set_capacity(header.capacity);
  advance();
  wire::Entry entry;
  while (reader.next(entry)) {
    if (auto done = apply(reader, entry, now, effects); !done) return done;
  }
  if (!reader.ok()) return nonsense_from_above("bad record");
  glossary_.forget(collector_->seen(position_));
  return {};
}

Result<void> Stream::apply(wire::Reader& reader, wire::Entry& entry, TimePoint now,
                           Effects& effects) {
  if (closed_ || (member_.stopped() && entry.record != wire::Record::Closed)) {
    return nonsense_from_above("goes on after the shutdown");
  }
  switch (entry.record) {
    case wire::Record::DefineKey:
      glossary_.define(glossary_.obtain(entry.key), entry.key.group, position_);
      return {};
    case wire::Record::DefineSignature:
      glossary_.define(entry.signature.full, position_);
      return {};
    case wire::Record::Dispatch:
      member_.stream_moved(now);
      return apply_dispatch(reader, entry, now, effects);
    case wire::Record::Fail:
      member_.stream_moved(now);
      return apply_failure(entry, effects);
    case wire::Record::Joined:
      if (!world_.has(entry.rank) || !member_.joined()) {
        return nonsense_from_above("a join that is none");
      }
      member_.stream_moved(now);
      member_.all_joined();
      collector_->all_joined();
      effects.joined_last = entry.rank;
      effects.dispatches_before_join = effects.dispatches.size();
      return {};
    case wire::Record::Shutdown:
      if (!world_.has(entry.rank)) return nonsense_from_above("a shutdown by nobody");
      collector_->stop();
      member_.stop({.rank = entry.rank, .reason = entry.reason, .text = std::string(entry.text)},
                   effects);
      effects.shutdown_by = entry.rank;
      return {};
    case wire::Record::Closed:
      if (!member_.stopped()) return nonsense_from_above("closed before the shutdown");
      closed_ = effects.closed = true;
      return {};
    default:
      return nonsense_from_above("a record that only goes up");
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
    if (!reader.item(entry)) return nonsense_from_above("bad record");
    const MeaningPtr meaning = glossary_.resolve(entry.signature, false);
    if (meaning == nullptr) return nonsense_from_above("unknown signature");
    const Glossary::Resolved resolved = glossary_.resolve(entry.key, false);
    Term* const term = resolved.term;
    if (term == nullptr && entry.key.number != 0) return nonsense_from_above("unknown key");
    const ProcessSet* set = term != nullptr
                                ? world_.find_set(term->key.process_set, term->key.generation)
                                : world_.find_set(entry.key.process_set, entry.key.generation);
    if (set == nullptr || set->id != dispatch.process_set) {
      return nonsense_from_above("another process set");
    }
    glossary_.use(*meaning);
    count(term, entry.key);
    if (set->members.contains(world_.self())) {
      member = true;
      if (auto done = member_.dispatch(term, meaning, dispatch); !done) return done;
      if (term != nullptr) dispatch.entries.back().track = std::exchange(term->tally.track, 0);
    }
    if (term != nullptr) {
      glossary_.use(*term);
      collector_->settle(*term);
      glossary_.release(*term);
    }
    if (is_set_change(meaning->signature.kind)) {
      if (items != 1 || set->id != 0) return nonsense_from_above("a change of sets in a batch");
      if (auto done = change_sets(meaning->signature, dispatch, now, effects); !done) return done;
    }
  }
  if (member) effects.dispatches.push_back(std::move(dispatch));
  return {};
}

Result<void> Stream::change_sets(const Signature& signature, Dispatch& dispatch, TimePoint now,
                                 Effects& effects) {
  if (signature.kind == Kind::AddProcessSet) {
    if (!world_.check_addition(signature.ranks)) {
      return nonsense_from_above("a process set that cannot be");
    }
    const ProcessSet& set = world_.add_set(signature.ranks);
    dispatch.change = {
        .id = set.id, .generation = set.generation, .added = true, .ranks = signature.ranks};
    return {};
  }
  const ProcessSet* set = world_.find_set(signature.root);
  if (set == nullptr || set->id == 0) {
    return nonsense_from_above("removes a process set that does not exist");
  }
  dispatch.change = {.id = set->id,
                     .generation = set->generation,
                     .added = false,
                     .ranks = set->members.to_vector()};
  const std::vector<Term*> terms = glossary_.terms_of(*set);
  member_.set_removed(terms, *set, effects);
  collector_->set_removed(*set, terms, now);
  for (Term* term : terms) {
    collector_->settle(*term);
    glossary_.release(*term);
  }
  world_.remove_set(set->id);
  return {};
}

/// What has passed here was submitted by the others, also where this rank did not (it had joined):
/// its count goes on from there.
void Stream::count(const Term* term, const wire::KeyRef& key) {
  if (term != nullptr) {
    member_.count(term->key);
  } else if (key.number == 0 && key.name.empty() && rules_of(key.kind).matched_by_count) {
    member_.count({.process_set = key.process_set,
                   .generation = key.generation,
                   .name = {},
                   .kind = key.kind,
                   .number = key.handle});
  }
}

Result<void> Stream::apply_failure(const wire::Entry& entry, Effects& effects) {
  if (entry.code >= kCodes) return nonsense_from_above("unknown code");
  const Glossary::Resolved resolved = glossary_.resolve(entry.key, false);
  count(resolved.term, entry.key);
  if (resolved.term == nullptr) {
    // A key of others: this rank has joined, or is not in the set.
    return entry.key.number == 0 ? Result<void>() : nonsense_from_above("unknown key");
  }
  Term& term = *resolved.term;
  Error error{.code = static_cast<Code>(entry.code),
              .message = std::string(entry.text),
              .tensor = entry.tensor.empty() ? full_name(term.key) : std::string(entry.tensor),
              .missing = entry.ranks};
  member_.fail(term, std::move(error), effects);
  glossary_.use(term);
  collector_->settle(term);
  glossary_.release(term);
  return {};
}

}  // namespace rueda

#include "engine/control/participant.h"

#include <algorithm>
#include <bit>

#include "collectives/registry.h"
#include "engine/base/wording.h"

namespace farandole {

namespace {

/// Graphs wait without a thread: a rank reports that it is blocked after this multiple of the
/// time limit for deadlocks.
constexpr int kGraphs = 10;

}  // namespace

Participant::Participant(const World& world, ResponseCache& cache, const NegotiatorOptions& options)
    : world_(world),
      cache_(cache),
      batch_bytes_(options.batch_bytes),
      cycle_(options.cycle),
      deadlock_(options.deadlock_limit()),
      self_(RankSet::of(world.self())) {}

Result<void> Participant::submit(std::span<const Key> keys, std::span<const Signature> signatures,
                                 std::span<const std::uint64_t> tickets, bool waited,
                                 TimePoint now) {
  if (stopped_by_ || leaving_) return refused(keys.empty() ? nullptr : &keys.front());
  if (joined_) {
    return refused_after_join(keys.empty() ? std::string() : full_name(keys.front()));
  }
  std::size_t done = 0;
  Result<void> result;
  for (; done < keys.size(); ++done) {
    const Key& key = keys[done];
    const ProcessSet* set = world_.find_set(key.process_set, key.generation);
    if (set == nullptr) {
      // Proposed in a set that has gone since, and refused.
      const bool removed =
          key.generation != 0 && world_.was_removed(key.process_set, key.generation);
      result = removed ? set_was_removed(key.process_set, full_name(key))
                       : no_such_set(key.process_set, full_name(key));
      break;
    }
    if (!set->members.contains(world_.self())) {
      result = Error{.code = Code::InvalidArgument,
                     .message = "Rank " + std::to_string(world_.self()) +
                                " is not a member of the provided process set " +
                                std::to_string(key.process_set),
                     .tensor = full_name(key)};
      break;
    }
    const Signature& signature = signatures[done];
    KeyState& key_state = cache_.obtain(in_full(key, {}));
    if (key_state.ticket != 0) {
      result = already_in_flight(signature.kind, full_name(key));
      break;
    }
    if (!key_state.canonical || key_state.canonical->id == 0 ||
        !ResponseCache::fits(*key_state.canonical, signature)) {
      key_state.canonical = cache_.canonical_of(signature);
    }
    if (rules_of(signature.kind).rows_may_differ) {
      key_state.submitted = std::make_shared<const Signature>(signature);
      key_state.size_class =
          static_cast<std::uint8_t>(std::min<int>(std::bit_width(signature.bytes()), 56));
    } else {
      key_state.size_class = 0;
    }
    key_state.group.assign(signature.group.name);
    key_state.ticket = tickets[done];
    key_state.published = key_state.waited = key_state.demanded = false;
    by_ticket_.insert(mix(key_state.ticket), &key_state);
    held_.push_back(&key_state);
    if (waited) mark_waited(key_state);
  }
  if (!result) {
    for (; done > 0; --done) {
      KeyState& key_state = *held_.back();
      held_.pop_back();
      forget(key_state);
      cache_.release(key_state);
    }
    return result;
  }
  for (const Key& key : keys) count(key);
  if (held_.size() == keys.size()) held_since_ = now;
  for (const Signature& signature : signatures) held_bytes_ += signature.bytes();
  if (waited || held_bytes_ >= batch_bytes_) due_ = true;
  quiet_since_ = now;
  retract();
  return {};
}

Result<void> Participant::join(std::uint64_t ticket) {
  if (stopped_by_ || leaving_) return refused(nullptr);
  if (joined_) {
    return Error{.code = Code::Duplicate,
                 .message = "This rank has joined already: a join ends when all ranks have",
                 .tensor = "join.noname"};
  }
  joined_ = true;
  join_ticket_ = ticket;
  return {};
}

void Participant::count(const Key& key) {
  if (!key.name.empty() || !rules_of(key.kind).matched_by_count) return;
  const ProcessSet* set = world_.find_set(key.process_set, key.generation);
  if (set == nullptr || !set->members.contains(world_.self())) return;
  std::uint64_t& last = counts_[{key.generation, key.kind}];
  last = std::max(last, key.number);
}

std::uint64_t Participant::next_count(std::uint32_t generation, Kind kind) const {
  const auto found = counts_.find({generation, kind});
  return found == counts_.end() ? 1 : found->second + 1;
}

void Participant::mark_waited(KeyState& key_state) noexcept {
  if (key_state.waited) return;
  key_state.waited = true;
  ++waited_;
}

void Participant::mark_waited(std::uint64_t ticket) {
  KeyState* key_state = in_flight(ticket);
  if (key_state == nullptr) return;
  mark_waited(*key_state);
  // Held submissions go too: another rank may wait for one of them before it submits what this rank
  // waits for.
  flush_held();
}

KeyState* Participant::in_flight(std::uint64_t ticket) const {
  return by_ticket_.find(mix(ticket), [&](const KeyState& one) { return one.ticket == ticket; });
}

void Participant::mark_demanded(std::span<const std::uint64_t> tickets) {
  for (const std::uint64_t ticket : tickets) {
    KeyState* key_state = in_flight(ticket);
    if (key_state == nullptr || key_state->demanded) continue;
    key_state->demanded = true;
    ++demanded_;
  }
  flush_held();
}

void Participant::mark_left(std::uint64_t ticket) {
  KeyState* key_state = in_flight(ticket);
  if (key_state == nullptr || !key_state->waited) return;
  key_state->waited = false;
  --waited_;
  retract();
}

void Participant::stand_still(bool still) {
  if (std::exchange(still_, still) == still) return;
  if (still) {
    announced_ = announced_ && certain_;  // says it again, for certain
  } else if (certain_) {
    retract();
  }
}

void Participant::retract() noexcept {
  retract_ = retract_ || announced_;
  announced_ = certain_ = false;
}

void Participant::mark_all_waited() {
  by_ticket_.for_each([&](KeyState& key_state) {
    if (!is_aside(key_state.key)) mark_waited(key_state);
  });
  flush_held();
}

void Participant::publish(Collector& collector, TimePoint now) {
  if (retract_) {
    retract_ = false;
    collector.unblocked(world_.self(), now);
  }
  if (!due_) return;
  due_ = false;
  held_bytes_ = 0;
  for (KeyState* key_state : held_) {
    key_state->published = true;
    // The signature may have got a cache id since the submission.
    if (key_state->canonical->id == 0)
      key_state->canonical = cache_.canonical_of(key_state->canonical->signature);
    // The result is always good: submit() has checked what report() would refuse.
    (void)collector.report(
        {.key_state = *key_state,
         .set = *world_.find_set(key_state->key.process_set, key_state->key.generation),
         .canonical = key_state->canonical,
         .group = key_state->group,
         .size_class = key_state->size_class,
         .who = self_,
         .since = now},
        now);
  }
  held_.clear();
}

void Participant::tick(Collector& collector, std::uint64_t position, TimePoint now) {
  if (!held_.empty() && now >= held_since_ + cycle_) due_ = true;
  publish(collector, now);
  const auto at = blocked_at();
  if (!at || now < *at) return;
  const KeyState* blocking = nullptr;
  by_ticket_.for_each([&](const KeyState& key_state) {
    const bool counts = waited_ != 0 ? key_state.waited : key_state.demanded;
    if (counts && (blocking == nullptr || key_state.ticket < blocking->ticket))
      blocking = &key_state;
  });
  announced_ = true;
  certain_ = still_ && demanded_ == 0;
  collector.blocked(world_.self(), position, certain_, full_name(blocking->key), now);
}

std::optional<TimePoint> Participant::next_tick() const {
  std::optional<TimePoint> at;
  if (!held_.empty()) at = held_since_ + cycle_;
  if (const auto blocked = blocked_at()) at = at ? std::min(*at, *blocked) : *blocked;
  return at;
}

/// When this rank says that it is blocked, if nothing is submitted or dispatched until then. Where
/// only graphs wait, other parts of a graph may still compute for long, and submit then.
std::optional<TimePoint> Participant::blocked_at() const {
  if (announced_ || joined_ || deadlock_ <= Duration::zero()) return std::nullopt;
  if (waited_ != 0) return quiet_since_ + deadlock_ / NegotiatorOptions::kSaySo;
  if (demanded_ != 0) return quiet_since_ + kGraphs * deadlock_;
  return std::nullopt;
}

void Participant::stream_moved(TimePoint now) noexcept {
  // The coordinator drops a Blocked report that was made at an earlier position of the stream.
  announced_ = certain_ = false;
  quiet_since_ = now;
}

Result<void> Participant::dispatch(KeyState* key_state, const CanonicalSignaturePtr& canonical,
                                   Dispatch& out) {
  if (key_state == nullptr || key_state->ticket == 0) {
    if (!joined_) {
      return Error{.code = Code::Internal,
                   .message = "An operation was dispatched that this rank has not submitted",
                   .tensor = key_state == nullptr ? std::string() : full_name(key_state->key)};
    }
    out.entries.push_back({.ticket = 0, .signature = {canonical, &canonical->signature}});
    return {};
  }
  if (!key_state->published) {
    return Error{.code = Code::Internal,
                 .message = "An operation was dispatched before this rank reported it",
                 .tensor = full_name(key_state->key)};
  }
  out.entries.push_back({.ticket = key_state->ticket, .signature = nullptr});
  if (key_state->submitted) {
    out.entries.back().signature = std::move(key_state->submitted);
  } else {
    out.entries.back().signature = {canonical, &canonical->signature};
  }
  ++key_state->exchanges;
  complete(*key_state);
  return {};
}

void Participant::fail(KeyState& key_state, Error error, Effects& effects) {
  if (key_state.ticket == 0 || !key_state.published) return;
  effects.failures.push_back({.ticket = key_state.ticket, .error = std::move(error)});
  complete(key_state);
}

void Participant::complete(KeyState& key_state) noexcept {
  forget(key_state);
  key_state.submitted.reset();
}

void Participant::forget(KeyState& key_state) noexcept {
  by_ticket_.erase(mix(key_state.ticket), &key_state);
  if (key_state.waited) --waited_;
  if (key_state.demanded) --demanded_;
  key_state.ticket = 0;
}

void Participant::set_removed(std::span<KeyState* const> key_states, const ProcessSet& set,
                              Effects& effects) {
  for (KeyState* key_state : key_states) {
    if (key_state->ticket == 0) continue;
    std::erase(held_, key_state);
    effects.failures.push_back(
        {.ticket = key_state->ticket, .error = set_was_removed(set.id, full_name(key_state->key))});
    complete(*key_state);
  }
  std::erase_if(counts_, [&](const auto& one) { return one.first.first == set.generation; });
}

void Participant::stop(wire::Departure by, Effects& effects) {
  stopped_by_ = std::move(by);
  has_failed_operations_ = joined_ || pending() != 0;
  if (joined_) {
    Error error = shut_down();
    error.tensor = "join.noname";
    effects.failures.push_back({.ticket = join_ticket_, .error = std::move(error)});
  }
  held_.clear();
  held_bytes_ = 0;
  due_ = false;
  const std::vector<KeyState*> key_states = pending_keys();
  for (KeyState* key_state : key_states) {
    Error error = shut_down(&key_state->key);
    error.tensor = full_name(key_state->key);
    effects.failures.push_back({.ticket = key_state->ticket, .error = std::move(error)});
  }
  for (KeyState* key_state : key_states) {  // later: lead() looks at all of them
    complete(*key_state);
    cache_.release(*key_state);
  }
}

Error Participant::refused(const Key* key) {
  Error error = shut_down(key);
  has_failed_operations_ = true;
  return error;
}

/// Number of times that all ranks have completed what this rank still wants to do; empty: not
/// known.
std::optional<std::uint64_t> Participant::times_done(const Key& key) const {
  if (key.name.empty()) {
    if (has_failed_operations_ && pending() == 0) return std::nullopt;  // they had numbers, too
    std::uint64_t first = key.number;
    by_ticket_.for_each([&](const KeyState& other) {
      if (other.key.name.empty() && other.key.generation == key.generation &&
          rules_of(other.key.kind).matched_by_count == rules_of(key.kind).matched_by_count) {
        first = std::min(first, other.key.number);
      }
    });
    return unnamed_call_index(first) - 1;
  }
  // The count of a key goes with it when it is evicted.
  if (cache_.capacity() == 0 || cache_.forgotten() != 0) return std::nullopt;
  const KeyState* known = cache_.find(in_full(key, {}));
  if (known != nullptr && !known->group.empty() && known->canonical) {
    // The fast path counts the first tensor of a group for all of them.
    Key first = key;
    first.name = known->group + "_1of" + std::to_string(known->canonical->signature.group.size);
    known = cache_.find(in_full(first, {}));
  }
  return known == nullptr ? 0 : known->exchanges;
}

/// Lead of this rank of the rank that has left, and what to try.
std::string Participant::lead(const Key& key) const {
  const ProcessSet* set = world_.find_set(key.process_set, key.generation);
  if (set == nullptr || !set->members.contains(stopped_by_->rank)) return {};
  const auto times = times_done(key);
  if (!times) return {};
  const KeyState* known = key.name.empty() ? nullptr : cache_.find(in_full(key, {}));
  const std::string name =
      known != nullptr && !known->group.empty() ? known->group : full_name(key);
  if (*times == 0) {
    return ". " + name + " was not complete even once: " +
           all_must_call(RankSet::of(world_.self()), RankSet::of(stopped_by_->rank));
  }
  std::string what = name;
  if (key.name.empty()) {
    const Rules& rules = rules_of(key.kind);
    what = rules.matched_by_count ? std::string(rules.prefix) : "calls without a name";
  }
  return ". Rank " + std::to_string(stopped_by_->rank) + " took part in " + what + " " +
         std::to_string(*times) + " time" + (*times == 1 ? "" : "s") + ", and " +
         world_.who(world_.self()) + " has begun number " + std::to_string(*times + 1) + ": " +
         std::string(kUnequalBatches);
}

Error Participant::shut_down(const Key* needed) const {
  using Reason = wire::Departure::Reason;
  Error error{.code = Code::Shutdown, .message = "Horovod has been shut down", .tensor = {}};
  if (!stopped_by_) return error;
  error.peer = stopped_by_->rank;
  if (stopped_by_->reason == Reason::Failed) {
    error.code = Code::PeerLost;
    error.message = world_.who(error.peer) + " has ended: its script " + stopped_by_->text;
    advise_to_look(error.message, "Its own output says more");
    error.missing = {error.peer};
    return error;
  }
  const bool over = stopped_by_->reason == Reason::ScriptOver;
  const std::string counted = needed == nullptr ? std::string() : lead(*needed);
  error.message += " by " + world_.who(error.peer);
  if (over) error.message += ": its script has come to its end";
  error.message += counted;
  if (over) {
    error.message += counted.empty() ? ". Operations that it has no part in fail" : "";
  } else {
    error.message +=
        ". Operations that were not complete then fail; call hvd.init() to start again";
  }
  return error;
}

std::vector<KeyState*> Participant::pending_keys() const {
  std::vector<KeyState*> key_states;
  by_ticket_.for_each([&](KeyState& key_state) { key_states.push_back(&key_state); });
  std::ranges::sort(key_states, {}, &KeyState::ticket);
  return key_states;
}

}  // namespace farandole

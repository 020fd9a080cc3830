#include "engine/control/member.h"

#include <algorithm>
#include <bit>

#include "collectives/registry.h"
#include "engine/base/names.h"

namespace rueda {

namespace {

/// A rank that waits in vain says so after this part of the time after which a deadlock ends the
/// world.
constexpr int kSaySo = 12;

}  // namespace

Member::Member(const World& world, Glossary& glossary, const NegotiatorOptions& options)
    : world_(world),
      glossary_(glossary),
      batch_bytes_(options.batch_bytes),
      cycle_(options.cycle),
      deadlock_(options.deadlock),
      self_(RankSet::of(world.self())) {}

Result<void> Member::submit(std::span<const Key> keys, std::span<const Signature> signatures,
                            std::span<const std::uint64_t> tickets, bool waited, TimePoint now) {
  if (stopped_by_ || leaving_) return refused();
  if (joined_) {
    return Error{.code = Code::InvalidArgument,
                 .message = "This rank has joined: it cannot submit operations until all have",
                 .tensor = keys.empty() ? std::string() : full_name(keys.front())};
  }
  std::size_t done = 0;
  Result<void> result;
  for (; done < keys.size(); ++done) {
    const Key& key = keys[done];
    const ProcessSet* set = world_.find_set(key.process_set, key.generation);
    if (set == nullptr || !set->members.contains(world_.self())) {
      result =
          Error{.code = Code::InvalidArgument,
                .message = set == nullptr ? "Process set " + std::to_string(key.process_set) +
                                                " does not exist, or has not been registered"
                                          : "Rank " + std::to_string(world_.self()) +
                                                " is not a member of the provided process set " +
                                                std::to_string(key.process_set),
                .tensor = full_name(key)};
      break;
    }
    Term& term = glossary_.obtain(in_full(key, {}));
    if (term.ticket != 0) {
      result =
          Error{.code = Code::Duplicate,
                .message = full_name(key) +
                           " was submitted with the same name as another tensor that is still in "
                           "flight on this rank. Wait for that one first, or use another name",
                .tensor = full_name(key)};
      break;
    }
    const Signature& signature = signatures[done];
    if (!term.meaning || term.meaning->number == 0 || !Glossary::fits(*term.meaning, signature)) {
      term.meaning = glossary_.meaning_of(signature);
    }
    if (rules_of(signature.kind).rows_may_differ) {
      term.submitted = std::make_shared<const Signature>(signature);
      term.size_class =
          static_cast<std::uint8_t>(std::min<int>(std::bit_width(signature.bytes()), 56));
    } else {
      term.size_class = 0;
    }
    term.group.assign(signature.group.name);
    term.ticket = tickets[done];
    term.published = term.waited = false;
    by_ticket_.insert(mix(term.ticket), &term);
    held_.push_back(&term);
    if (waited) note_want(term);
  }
  if (!result) {
    for (; done > 0; --done) {
      Term& term = *held_.back();
      held_.pop_back();
      by_ticket_.erase(mix(term.ticket), &term);
      if (term.waited) --waited_;
      term.ticket = 0;
      glossary_.release(term);
    }
    return result;
  }
  for (const Key& key : keys) count(key);
  if (held_.size() == keys.size()) held_since_ = now;
  for (const Signature& signature : signatures) held_bytes_ += signature.bytes();
  if (waited || held_bytes_ >= batch_bytes_) due_ = true;
  quiet_since_ = now;
  if (announced_) {
    announced_ = false;
    retract_ = true;
  }
  return {};
}

Result<void> Member::join(std::uint64_t ticket) {
  if (stopped_by_ || leaving_) return refused();
  if (joined_) {
    return Error{.code = Code::Duplicate,
                 .message = "This rank has joined already: a join ends when all ranks have",
                 .tensor = "join.noname"};
  }
  joined_ = true;
  join_ticket_ = ticket;
  return {};
}

void Member::count(const Key& key) {
  if (!key.name.empty() || !rules_of(key.kind).matched_by_count) return;
  const ProcessSet* set = world_.find_set(key.process_set, key.generation);
  if (set == nullptr || !set->members.contains(world_.self())) return;
  std::uint64_t& last = counts_[{key.generation, key.kind}];
  last = std::max(last, key.number);
}

std::uint64_t Member::next_count(std::uint32_t generation, Kind kind) const {
  const auto found = counts_.find({generation, kind});
  return found == counts_.end() ? 1 : found->second + 1;
}

void Member::note_want(Term& term) noexcept {
  if (term.waited) return;
  term.waited = true;
  ++waited_;
}

void Member::want(std::uint64_t ticket) {
  Term* term = by_ticket_.find(mix(ticket), [&](const Term& one) { return one.ticket == ticket; });
  if (term == nullptr) return;
  note_want(*term);
  // Somebody who waits for what is under way may still need what is held: another rank may wait for
  // it.
  demand();
}

void Member::want_all() {
  by_ticket_.for_each([&](Term& term) { note_want(term); });
  demand();
}

void Member::publish(Collector& collector, TimePoint now) {
  if (retract_) {
    retract_ = false;
    collector.unblocked(world_.self(), now);
  }
  if (!due_) return;
  due_ = false;
  held_bytes_ = 0;
  for (Term* term : held_) {
    term->published = true;
    // A number may have come since the submission.
    if (term->meaning->number == 0) term->meaning = glossary_.meaning_of(term->meaning->signature);
    // Own reports cannot contradict what is known here: submit() has checked them.
    (void)collector.report({.term = *term,
                            .set = *world_.find_set(term->key.process_set, term->key.generation),
                            .meaning = term->meaning,
                            .group = term->group,
                            .size_class = term->size_class,
                            .who = self_,
                            .since = now},
                           now);
  }
  held_.clear();
}

void Member::tick(Collector& collector, std::uint64_t position, TimePoint now) {
  if (!held_.empty() && now >= held_since_ + cycle_) due_ = true;
  publish(collector, now);
  if (announced_ || waited_ == 0 || joined_ || deadlock_ <= Duration::zero() ||
      now < quiet_since_ + deadlock_ / kSaySo) {
    return;
  }
  const Term* blocking = nullptr;
  by_ticket_.for_each([&](const Term& term) {
    if (term.waited && (blocking == nullptr || term.ticket < blocking->ticket)) blocking = &term;
  });
  announced_ = true;
  collector.blocked(world_.self(), position, full_name(blocking->key), now);
}

std::optional<TimePoint> Member::next_tick() const {
  std::optional<TimePoint> at;
  if (!held_.empty()) at = held_since_ + cycle_;
  if (!announced_ && waited_ != 0 && !joined_ && deadlock_ > Duration::zero()) {
    const TimePoint blocked = quiet_since_ + deadlock_ / kSaySo;
    at = at ? std::min(*at, blocked) : blocked;
  }
  return at;
}

void Member::stream_moved(TimePoint now) noexcept {
  // What was said about being blocked was about an earlier position of the stream.
  announced_ = false;
  quiet_since_ = now;
}

Result<void> Member::dispatch(Term* term, const MeaningPtr& meaning, Dispatch& out) {
  if (term == nullptr || term->ticket == 0) {
    if (!joined_) {
      return Error{.code = Code::Internal,
                   .message = "An operation was dispatched that this rank has not submitted",
                   .tensor = term == nullptr ? std::string() : full_name(term->key)};
    }
    out.entries.push_back({.ticket = 0, .signature = {meaning, &meaning->signature}});
    return {};
  }
  if (!term->published) {
    return Error{.code = Code::Internal,
                 .message = "An operation was dispatched before this rank reported it",
                 .tensor = full_name(term->key)};
  }
  out.entries.push_back({.ticket = term->ticket, .signature = nullptr});
  if (term->submitted) {
    out.entries.back().signature = std::move(term->submitted);
  } else {
    out.entries.back().signature = {meaning, &meaning->signature};
  }
  complete(*term);
  return {};
}

void Member::fail(Term& term, Error error, Effects& effects) {
  if (term.ticket == 0 || !term.published) return;
  effects.failures.push_back({.ticket = term.ticket, .error = std::move(error)});
  complete(term);
}

void Member::complete(Term& term) noexcept {
  by_ticket_.erase(mix(term.ticket), &term);
  if (term.waited) --waited_;
  term.ticket = 0;
  term.submitted.reset();
}

void Member::set_removed(std::span<Term* const> terms, const ProcessSet& set, Effects& effects) {
  for (Term* term : terms) {
    if (term->ticket == 0) continue;
    std::erase(held_, term);
    effects.failures.push_back(
        {.ticket = term->ticket,
         .error = Error{.code = Code::Internal,
                        .message = "Process set has been removed: " + full_name(term->key) +
                                   " was still pending on process set " + std::to_string(set.id),
                        .tensor = full_name(term->key)}});
    complete(*term);
  }
  std::erase_if(counts_, [&](const auto& one) { return one.first.first == set.generation; });
}

void Member::stop(wire::Departure by, Effects& effects) {
  stopped_by_ = std::move(by);
  let_down_ = joined_ || pending() != 0;
  if (joined_) {
    Error error = shut_down();
    error.tensor = "join.noname";
    effects.failures.push_back({.ticket = join_ticket_, .error = std::move(error)});
  }
  held_.clear();
  held_bytes_ = 0;
  due_ = false;
  for (Term* term : pending_terms()) {
    Error error = shut_down();
    error.tensor = full_name(term->key);
    effects.failures.push_back({.ticket = term->ticket, .error = std::move(error)});
    complete(*term);
    glossary_.release(*term);
  }
}

Error Member::refused() {
  let_down_ = true;
  return shut_down();
}

Error Member::shut_down() const {
  using Reason = wire::Departure::Reason;
  Error error{.code = Code::Shutdown, .message = "Horovod has been shut down", .tensor = {}};
  if (!stopped_by_) return error;
  error.peer = stopped_by_->rank;
  if (stopped_by_->reason == Reason::Failed) {
    error.code = Code::PeerLost;
    error.message = world_.who(error.peer) + " has ended: its script " + stopped_by_->text +
                    ". Its own output says more";
    error.missing = {error.peer};
    return error;
  }
  error.message +=
      " by " + world_.who(error.peer) +
      (stopped_by_->reason == Reason::ScriptOver
           ? ": its script has come to its end. Operations that it has no part in fail"
           : ". Operations that were not complete then fail; call hvd.init() to start again");
  return error;
}

std::vector<Term*> Member::pending_terms() const {
  std::vector<Term*> terms;
  by_ticket_.for_each([&](Term& term) { terms.push_back(&term); });
  std::ranges::sort(terms, {}, &Term::ticket);
  return terms;
}

}  // namespace rueda

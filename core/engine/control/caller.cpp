#include "engine/control/caller.h"

#include <algorithm>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/names.h"
#include "engine/control/conflicts.h"
#include "engine/control/verdict.h"

namespace rueda {

namespace {

/// Names that count calls never come again: a number would only push out another.
bool worth_a_number(const Key& key) {
  // "allreduce.noname.7" is used once; "allreduce.weights.noname.7" is somebody's name.
  return !key.name.empty() && key.name.find(".noname.") != key.name.find('.');
}

/// What the keys of all groups of a set begin with.
std::string group_prefix(std::int32_t process_set, std::uint32_t generation) {
  return std::to_string(process_set) + ":" + std::to_string(generation) + ":";
}

/// Two groups of one name and different sizes may be under way at the same time.
std::string group_key(const Key& key, const Statement& statement) {
  return group_prefix(key.process_set, key.generation) +
         std::to_string(statement.meaning->signature.group.size) + ":" + statement.group;
}

}  // namespace

Caller::Caller(const World& world, Glossary& glossary, Stream& stream,
               const NegotiatorOptions& options, Timeline* timeline)
    : Collector(world, glossary),
      stream_(stream),
      fusion_{.threshold_bytes = options.fusion_threshold_bytes,
              .disable_group_fusion = options.disable_group_fusion},
      stall_(options.stall_warning, options.stall_shutdown,
             [&world](Rank rank) { return world.who(rank); }),
      deadlock_(options.deadlock),
      timeline_(timeline),
      blocked_on_(static_cast<std::size_t>(world.size())) {
  glossary.set_capacity(options.key_capacity);
}

Result<void> Caller::report(const Report& report, TimePoint now) {
  if (stopped()) return {};
  Term& term = report.term;
  Tally& tally = term.tally;
  if (timeline_ != nullptr && timeline_->recording()) {
    timeline_->reported(tally.track, term.key, report.meaning->signature.kind, report.who,
                        tally.reported, report.set.members, now);
  }
  if (!tally.open) {
    tally.open = true;
    tally.since = report.since;
    // The oldest comes first: that is when the stall monitor looks next.
    if (open_.oldest() != nullptr && report.since < open_.oldest()->tally.since) {
      open_.prepend(term);
    } else {
      open_.append(term);
    }
  } else if (report.since < tally.since) {
    tally.since = report.since;
    if (report.since < open_.oldest()->tally.since) {
      open_.remove(term);
      open_.prepend(term);
    }
  }
  tally.add(report.meaning, report.group, report.who);
  tally.size_class = std::max(tally.size_class, report.size_class);
  if (!tally.complete && covered(tally, report.set)) {
    tally.complete = true;
    complete_.push_back(&term);
  }
  // A report that a node held for long is old news. Whoever said that it is blocked takes it back
  // itself before it reports more.
  last_progress_ = std::max(last_progress_, report.since);
  look_for_conflicts_ = !blocked_.empty();
  return {};
}

bool Caller::covered(const Tally& tally, const ProcessSet& set) const {
  if (joined_.empty()) return tally.reported.covers(set.members);
  RankSet accounted = tally.reported;
  accounted.add(joined_);
  return accounted.covers(set.members);
}

const ProcessSet& Caller::set_of(const Term& term) const {
  // A tally is only opened for a set that exists.
  return *world_.find_set(term.key.process_set, term.key.generation);
}

Result<void> Caller::join(Rank rank, TimePoint now) {
  if (stopped()) return {};
  if (joined_.contains(rank)) return nonsense(world_, rank, "joins twice");
  joined_.add(rank);
  joining_ = std::max(joining_, rank);
  last_progress_ = now;
  return {};
}

void Caller::leave(const wire::Departure& who) {
  if (!leaving_) leaving_ = who;
}

void Caller::blocked(Rank rank, std::uint64_t position, std::string_view name, TimePoint) {
  if (position != stream_.position()) return;  // something came out since: it may go on
  blocked_.add(rank);
  blocked_on_[static_cast<std::size_t>(rank)] = name;
  look_for_conflicts_ = true;
}

void Caller::unblocked(Rank rank, TimePoint now) {
  blocked_.remove(rank);
  last_progress_ = now;
}

void Caller::settle(Term& term) {
  if (!term.tally.open) return;
  // Neither dispatched nor failed: cut off by the end of its process set, which happens just now.
  if (term.tally.track != 0) timeline_->refused(term.tally.track, last_progress_);
  open_.remove(term);
  term.tally.clear();
}

void Caller::find_covered_by_joined() {
  for (Term* term = open_.oldest(); term != nullptr; term = term->newer) {
    if (term->tally.complete || !covered(term->tally, set_of(*term))) continue;
    term->tally.complete = true;
    complete_.push_back(term);
  }
}

std::optional<Error> Caller::judge(Term& term) const {
  const RankSet& members = set_of(term).members;
  RankSet absent;
  if (!term.tally.reported.covers(members)) {  // else no copy: of 32,768 ranks it has 4 KiB
    absent = members;
    absent.remove(term.tally.reported);
  }
  return verdict(term, absent);
}

void Caller::sort_out(Term& term) {
  auto error = judge(term);
  const Statement& first = term.tally.statements.front();
  const std::span<const Statement> said(term.tally.statements.data(), term.tally.said);
  const bool grouped = !first.group.empty() && std::ranges::all_of(said, [&](const Statement& one) {
    return one.group == first.group &&
           one.meaning->signature.group.size == first.meaning->signature.group.size;
  });
  if (!grouped) {
    if (error) {
      failing_.push_back({&term, std::move(*error)});
    } else if (is_set_change(first.meaning->signature.kind)) {
      changes_.push_back(&term);
    } else {
      ready_.push_back(&term);
      ready_groups_.push_back(0);
    }
    return;
  }
  // All or none: the members wait for the last one.
  const auto at = groups_.try_emplace(group_key(term.key, first)).first;
  OpenGroup& group = at->second;
  group.members.push_back(&term);
  if (error && !group.error) group.error = std::move(error);
  if (group.members.size() < first.meaning->signature.group.size) return;
  ++group_number_;
  for (Term* member : group.members) {
    if (group.error) {
      failing_.push_back({member, *group.error});
    } else {
      ready_.push_back(member);
      ready_groups_.push_back(group_number_);
    }
  }
  groups_.erase(at);
}

Result<void> Caller::flush(TimePoint now, Effects& effects) {
  if (!complained_) {
    complained_ = true;
    if (auto text = stall_.complaint(); !text.empty()) effects.warnings.push_back(std::move(text));
  }
  if (joining_ >= 0) {
    joined_last_ = std::exchange(joining_, -1);
    find_covered_by_joined();
  }
  for (Term* term : complete_) sort_out(*term);
  complete_.clear();
  if (std::exchange(look_for_conflicts_, false)) find_conflicting();
  if (!failing_.empty()) {
    if (auto done = emit_failures(now, effects); !done) return done;
  }
  if (!ready_.empty()) {
    if (auto done = emit_dispatches(now, effects); !done) return done;
  }
  if (!changes_.empty()) {
    if (auto done = emit_changes(now, effects); !done) return done;
  }
  if (!stopped() && !joined_.empty() && joined_.covers(world_.everyone())) {
    down().joined(joined_last_);
    if (auto done = apply(now, effects); !done) return done;
  }
  if (!stopped() && leaving_) {
    down().shutdown(*leaving_);
    if (auto done = apply(now, effects); !done) return done;
  }
  if (close_ && !stream_.closed()) {
    down().closed();
    if (auto done = apply(now, effects); !done) return done;
  }
  if (!message_.empty()) send(effects);
  return {};
}

wire::Writer Caller::down() {
  if (message_.empty()) {
    stream_.advance();
    wire::Writer(message_).header({.direction = wire::Direction::Down,
                                   .capacity = static_cast<std::uint32_t>(glossary_.capacity()),
                                   .position = stream_.position()});
    applied_ = message_.size();
    blocked_.clear();
  }
  return wire::Writer(message_);
}

Result<void> Caller::apply(TimePoint now, Effects& effects) {
  wire::Reader reader(std::span<const std::byte>(message_).subspan(applied_));
  applied_ = message_.size();
  wire::Entry entry;
  while (reader.next(entry)) {
    if (auto done = stream_.apply(reader, entry, now, effects); !done) return done;
  }
  last_progress_ = now;
  return {};
}

Result<void> Caller::check_change(const Signature& signature) const {
  if (signature.kind == Kind::AddProcessSet) return world_.check_addition(signature.ranks);
  if (signature.root != 0 && world_.find_set(signature.root) != nullptr) return {};
  return Error{.code = Code::InvalidArgument,
               .message = "Process set " + std::to_string(signature.root) + " cannot be removed"};
}

Result<void> Caller::emit_changes(TimePoint now, Effects& effects) {
  for (Term* term : changes_) {
    auto fine = check_change(term->tally.statements.front().meaning->signature);
    if (!fine) {
      Error error = std::move(fine).error();
      error.tensor = full_name(term->key);
      failing_.push_back({term, std::move(error)});
      if (auto done = emit_failures(now, effects); !done) return done;
      continue;
    }
    // All operations of a removed set that were ready have come out before; the rest fails.
    if (auto done = emit_dispatch({&term, 1}, now, effects); !done) return done;
  }
  changes_.clear();
  return {};
}

void Caller::set_removed(const ProcessSet& set, std::span<Term* const> terms, TimePoint now) {
  for (const Term* term : terms) {
    if (term->tally.track != 0) timeline_->refused(term->tally.track, now);
  }
  const std::string prefix = group_prefix(set.id, set.generation);
  std::erase_if(groups_, [&](const auto& group) { return group.first.starts_with(prefix); });
}

Result<void> Caller::emit_failures(TimePoint now, Effects& effects) {
  for (const Failing& failing : failing_) {
    Term& term = *failing.term;
    if (term.tally.track != 0) timeline_->refused(std::exchange(term.tally.track, 0), now);
    down().fail(Glossary::reference(term, term.tally.statements.front().group),
                static_cast<std::uint8_t>(failing.error.code), failing.error.message,
                failing.error.tensor, failing.error.missing);
    if (auto done = apply(now, effects); !done) return done;
  }
  failing_.clear();
  return {};
}

Result<void> Caller::emit_dispatches(TimePoint now, Effects& effects) {
  Result<void> done;
  if (ready_.size() == 1) {
    done = emit_dispatch(ready_, now, effects);
  } else {
    std::vector<Ready> ready;
    ready.reserve(ready_.size());
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      ready.push_back({.signature = &ready_[i]->tally.statements.front().meaning->signature,
                       .bytes = bytes_of(*ready_[i]),
                       .process_set = ready_[i]->key.process_set,
                       .group = ready_groups_[i]});
    }
    std::vector<Term*> batch;
    for (const auto& places : plan(ready, fusion_)) {
      batch.clear();
      for (std::size_t place : places) batch.push_back(ready_[place]);
      done = emit_dispatch(batch, now, effects);
      if (!done) break;
    }
  }
  ready_.clear();
  ready_groups_.clear();
  return done;
}

std::size_t Caller::bytes_of(const Term& term) const {
  const Signature& signature = term.tally.statements.front().meaning->signature;
  if (!rules_of(signature.kind).rows_may_differ) return signature.bytes();
  // How many rows there are is each rank's own affair: an upper bound has to do.
  const auto members = static_cast<std::size_t>(set_of(term).members.count());
  return ((std::size_t{1} << term.tally.size_class) - 1) * members;
}

Result<void> Caller::define(Term& term, TimePoint now, Effects& effects) {
  if (glossary_.capacity() == 0) return {};
  const Statement& statement = term.tally.statements.front();
  // Sets come and go rarely: their descriptions would only push out others.
  if (is_set_change(statement.meaning->signature.kind)) return {};
  const bool numbered =
      term.definition != nullptr && term.definition->value.group == statement.group;
  if (!numbered && worth_a_number(term.key)) {
    down().define(in_full(term.key, statement.group));
    if (auto done = apply(now, effects); !done) return done;
  }
  if (statement.meaning->number == 0 &&
      glossary_.meaning_of(statement.meaning->signature)->number == 0) {
    down().define(statement.meaning->signature);
    return apply(now, effects);
  }
  return {};
}

Result<void> Caller::emit_dispatch(std::span<Term* const> batch, TimePoint now, Effects& effects) {
  for (Term* term : batch) {
    if (auto done = define(*term, now, effects); !done) return done;
  }
  wire::Writer writer = down();
  writer.dispatch(batch.front()->key.process_set, static_cast<std::uint32_t>(batch.size()));
  for (Term* term : batch) {
    Statement& statement = term->tally.statements.front();
    if (statement.meaning->number == 0) {
      statement.meaning = glossary_.meaning_of(statement.meaning->signature);
    }
    // Some numbers may be gone again already, if the batch is larger than the capacity.
    writer.item(Glossary::reference(*term, statement.group), statement.meaning->number,
                statement.meaning->signature);
    if (Track& track = term->tally.track; track != 0) {
      // All there is to see of a barrier, or of a change of sets, is who came when.
      const Kind kind = statement.meaning->signature.kind;
      const bool runs_here = kind != Kind::Barrier && !is_set_change(kind) &&
                             set_of(*term).members.contains(world_.self());
      timeline_->negotiated(track, runs_here, now);
      if (!runs_here) track = 0;
    }
  }
  return apply(now, effects);
}

void Caller::send(Effects& effects) {
  if (!world_.tree().children.empty()) {
    const std::size_t begin = effects.bytes.size();
    effects.bytes.insert(effects.bytes.end(), message_.begin(), message_.end());
    for (Rank child : world_.tree().children) {
      effects.sends.push_back({.to = child, .begin = begin, .end = effects.bytes.size()});
    }
  }
  message_.clear();
  glossary_.forget(seen(stream_.position()));
}

std::vector<Rank> Caller::missing(const Term& term) const {
  const ProcessSet* set = world_.find_set(term.key.process_set, term.key.generation);
  if (set == nullptr) return {};
  RankSet ranks = set->members;
  ranks.remove(term.tally.reported);
  ranks.remove(joined_);
  return ranks.to_vector();
}

std::vector<Negotiator::Pending> Caller::owed(Rank rank) const {
  std::vector<Negotiator::Pending> all;
  for (const Term* term = open_.oldest(); term != nullptr; term = term->newer) {
    auto absent = missing(*term);
    if (!std::ranges::binary_search(absent, rank)) continue;
    all.push_back({.name = full_name(term->key), .missing = std::move(absent)});
  }
  return all;
}

void Caller::tick(TimePoint now, Effects& effects) {
  if (stopped() || fatal_) return;
  if (stall_.enabled() && open_.oldest() != nullptr &&
      now >= stall_.due(open_.oldest()->tally.since)) {
    std::vector<Waiting> waiting;
    for (const Term* term = open_.oldest(); term != nullptr; term = term->newer) {
      if (now - term->tally.since < stall_.warning()) continue;
      waiting.push_back({full_name(term->key), term->tally.since, missing(*term)});
    }
    if (auto report = stall_.check(now, waiting)) {
      (report->fatal ? effects.errors : effects.warnings).push_back(std::move(report->text));
      if (report->fatal) {
        effects.fatal = std::move(report->fatal);
        fatal_ = true;
        return;
      }
    }
  }
  check_deadlock(now, effects);
}

/// What can never be complete, though everybody whom it concerns waits for it.
void Caller::find_conflicting() {
  if (stopped() || blocked_.empty() || !complete_.empty() || !ready_.empty()) return;
  const auto set_of_term = [this](const Term& term) -> const ProcessSet& { return set_of(term); };
  for (Conflict& conflict : find_conflicts(open_.oldest(), set_of_term, blocked_, joined_)) {
    for (Term* term : conflict.terms) {
      conflict.error.tensor = full_name(term->key);
      failing_.push_back({term, conflict.error});
    }
  }
}

void Caller::check_deadlock(TimePoint now, Effects& effects) {
  RankSet live = world_.everyone();
  live.remove(joined_);
  if (deadlock_ <= Duration::zero() || live.empty() || !blocked_.covers(live) ||
      now < last_progress_ + deadlock_) {
    return;
  }
  Error error{
      .code = Code::Timeout,
      .message = "Deadlock: every rank waits, and no operation was submitted by all of them:",
      .tensor = blocked_on_[static_cast<std::size_t>(live.lowest())],
      .missing = {},
      .waited_s = std::chrono::duration<double>(now - last_progress_).count(),
      .cause = nullptr};
  const char* separator = " ";
  live.for_each([&](Rank rank) {
    error.message +=
        separator + world_.who(rank) + " waits for " + blocked_on_[static_cast<std::size_t>(rank)];
    separator = "; ";
  });
  error.message += ". Ranks must submit the same operations before they wait";
  effects.fatal = std::move(error);
  fatal_ = true;
}

std::optional<TimePoint> Caller::next_tick() const {
  if (stopped() || fatal_) return std::nullopt;
  std::optional<TimePoint> at;
  if (stall_.enabled() && open_.oldest() != nullptr) at = stall_.due(open_.oldest()->tally.since);
  if (!blocked_.empty() && deadlock_ > Duration::zero()) {
    const TimePoint deadlock = last_progress_ + deadlock_;
    RankSet live = world_.everyone();
    live.remove(joined_);
    if (blocked_.covers(live)) at = at ? std::min(*at, deadlock) : deadlock;
  }
  return at;
}

}  // namespace rueda

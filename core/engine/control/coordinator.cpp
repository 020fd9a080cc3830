#include "engine/control/coordinator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/wording.h"
#include "engine/control/conflicts.h"

namespace farandole {

namespace {

/// A name that counts calls is used once. A cache id for it would only evict another.
bool worth_an_id(const Key& key) {
  // "allreduce.noname.7" is such a name; "allreduce.weights.noname.7" was chosen by a user.
  return !key.name.empty() && key.name.find(".noname.") != key.name.find('.');
}

/// From `key_state` on, the first that may stall.
const KeyState* unless_aside(const KeyState* key_state) {
  while (key_state != nullptr && is_aside(key_state->key)) key_state = key_state->newer;
  return key_state;
}

/// Asks about the operation that the fewest ranks wait for; of several, that of the lowest rank.
std::string question_about(const std::vector<std::string>& waited_for, const RankSet& live) {
  std::map<std::string, RankSet> waiting;
  live.for_each([&](Rank rank) { waiting[waited_for[static_cast<std::size_t>(rank)]].add(rank); });
  const auto fewest = std::ranges::min_element(waiting, {}, [](const auto& one) {
    return std::pair(one.second.count(), one.second.lowest());
  });
  return "Of " + fewest->first + ": " + all_must_call(fewest->second, {});
}

/// The operation runs as those ask for it who bring something, if anybody does.
void put_present_first(Tally& tally) {
  for (std::size_t i = 0; i < tally.said; ++i) {
    if (tally.statements[i].canonical->signature.absent) continue;
    std::swap(tally.statements.front(), tally.statements[i]);
    return;
  }
}

/// The common prefix of the keys of all groups of one process set.
std::string group_prefix(std::int32_t process_set, std::uint32_t generation) {
  return std::to_string(process_set) + ":" + std::to_string(generation) + ":";
}

/// The size is part of the key: two groups of one name and different sizes may be in flight at the
/// same time.
std::string group_key(const Key& key, const Statement& statement) {
  return group_prefix(key.process_set, key.generation) +
         std::to_string(statement.canonical->signature.group.size) + ":" + statement.group;
}

}  // namespace

Coordinator::Coordinator(const World& world, ResponseCache& cache, Stream& stream,
                         const NegotiatorOptions& options, Timeline* timeline)
    : Collector(world, cache),
      stream_(stream),
      fusion_{.threshold_bytes = options.fusion_threshold_bytes,
              .disable_group_fusion = options.disable_group_fusion},
      stall_(options.stall_warning, options.stall_shutdown,
             [&world](Rank rank) { return world.who(rank); }),
      deadlock_(options.deadlock_limit()),
      timeline_(timeline),
      blocked_on_(static_cast<std::size_t>(world.size())) {
  cache.set_capacity(options.key_capacity);
}

Result<void> Coordinator::report(const Report& report, TimePoint now) {
  if (stopped()) return {};
  KeyState& key_state = report.key_state;
  Tally& tally = key_state.tally;
  if (timeline_ != nullptr && timeline_->recording()) {
    timeline_->reported(tally.track, key_state.key, report.canonical->signature.kind, report.who,
                        tally.reported, report.set.members, now);
  }
  if (!tally.open) {
    tally.open = true;
    tally.since = report.since;
    // The list is ordered by age: the stall monitor's next check follows from its first element.
    if (open_.oldest() != nullptr && report.since < open_.oldest()->tally.since) {
      open_.prepend(key_state);
    } else {
      open_.append(key_state);
    }
  } else if (report.since < tally.since) {
    tally.since = report.since;
    if (report.since < open_.oldest()->tally.since) {
      open_.remove(key_state);
      open_.prepend(key_state);
    }
  }
  tally.add(report.canonical, report.group, report.who);
  tally.size_class = std::max(tally.size_class, report.size_class);
  if (!tally.complete && covered(tally, report.set)) {
    tally.complete = true;
    complete_.push_back(&key_state);
  }
  // A tree node may have held this report for long, so progress is dated by the report, not by its
  // arrival. It does not unblock its rank: a blocked rank says Unblocked itself before it reports
  // more.
  last_progress_ = std::max(last_progress_, report.since);
  look_for_conflicts_ = !blocked_.empty();
  return {};
}

bool Coordinator::covered(const Tally& tally, const ProcessSet& set) const {
  if (joined_.empty()) return tally.reported.covers(set.members);
  RankSet accounted = tally.reported;
  accounted.add(joined_);
  return accounted.covers(set.members);
}

const ProcessSet& Coordinator::set_of(const KeyState& key_state) const {
  // A tally is only opened for a set that exists.
  return *world_.find_set(key_state.key.process_set, key_state.key.generation);
}

Result<void> Coordinator::join(Rank rank, TimePoint now) {
  if (stopped()) return {};
  if (joined_.contains(rank)) return malformed(world_, rank, "joins twice");
  joined_.add(rank);
  joining_ = std::max(joining_, rank);
  last_progress_ = now;
  return {};
}

void Coordinator::leave(const wire::Departure& who) {
  if (!leaving_) leaving_ = who;
}

void Coordinator::blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name,
                          TimePoint) {
  if (position != stream_.position()) return;  // a later dispatch may have unblocked it
  blocked_.add(rank);
  if (certain) certain_.add(rank);
  blocked_on_[static_cast<std::size_t>(rank)] = name;
  look_for_conflicts_ = true;
}

void Coordinator::unblocked(Rank rank, TimePoint now) {
  blocked_.remove(rank);
  certain_.remove(rank);
  deadlock_told_ = false;
  last_progress_ = now;
}

void Coordinator::settle(KeyState& key_state) {
  if (!key_state.tally.open) return;
  // A track that is still open here was neither dispatched nor failed: its process set is being
  // removed.
  if (key_state.tally.track != 0) timeline_->refused(key_state.tally.track, last_progress_);
  open_.remove(key_state);
  key_state.tally.clear();
}

void Coordinator::find_covered_by_joined() {
  for (KeyState* key_state = open_.oldest(); key_state != nullptr; key_state = key_state->newer) {
    if (key_state->tally.complete || !covered(key_state->tally, set_of(*key_state))) continue;
    key_state->tally.complete = true;
    complete_.push_back(key_state);
  }
}

std::optional<Error> Coordinator::mismatch_of(KeyState& key_state) const {
  const RankSet& members = set_of(key_state).members;
  RankSet absent;
  if (!key_state.tally.reported.covers(
          members)) {  // avoids a copy: the set of 32,768 ranks takes 4 KiB
    absent = members;
    absent.remove(key_state.tally.reported);
  }
  return find_mismatch(key_state, absent);
}

void Coordinator::sort_out(KeyState& key_state) {
  auto error = mismatch_of(key_state);
  if (!error) put_present_first(key_state.tally);
  const Statement& first = key_state.tally.statements.front();
  const std::span<const Statement> said(key_state.tally.statements.data(), key_state.tally.said);
  const bool grouped = !first.group.empty() && std::ranges::all_of(said, [&](const Statement& one) {
    return one.group == first.group &&
           one.canonical->signature.group.size == first.canonical->signature.group.size;
  });
  if (!grouped) {
    if (error) {
      failing_.push_back({&key_state, std::move(*error)});
    } else if (is_set_change(first.canonical->signature.kind)) {
      changes_.push_back(&key_state);
    } else {
      ready_.push_back(&key_state);
      ready_groups_.push_back(0);
    }
    return;
  }
  // A group runs as a whole: its tensors wait until the last one is complete.
  const auto at = groups_.try_emplace(group_key(key_state.key, first)).first;
  OpenGroup& group = at->second;
  group.members.push_back(&key_state);
  if (error && !group.error) group.error = std::move(error);
  if (group.members.size() < first.canonical->signature.group.size) return;
  ++group_number_;
  for (KeyState* member : group.members) {
    if (group.error) {
      failing_.push_back({member, *group.error});
    } else {
      ready_.push_back(member);
      ready_groups_.push_back(group_number_);
    }
  }
  groups_.erase(at);
}

Result<void> Coordinator::flush(TimePoint now, Effects& effects) {
  if (joining_ >= 0) {
    joined_last_ = std::exchange(joining_, -1);
    find_covered_by_joined();
  }
  for (KeyState* key_state : complete_) sort_out(*key_state);
  complete_.clear();
  if (std::exchange(look_for_conflicts_, false)) find_conflicting(now);
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

wire::Writer Coordinator::down() {
  if (message_.empty()) {
    stream_.advance();
    wire::Writer(message_).header({.direction = wire::Direction::Down,
                                   .capacity = static_cast<std::uint32_t>(cache_.capacity()),
                                   .position = stream_.position()});
    applied_ = message_.size();
    blocked_.clear();
    certain_.clear();
    deadlock_told_ = false;
  }
  return wire::Writer(message_);
}

Result<void> Coordinator::apply(TimePoint now, Effects& effects) {
  wire::Reader reader(std::span<const std::byte>(message_).subspan(applied_));
  applied_ = message_.size();
  wire::Entry entry;
  while (reader.next(entry)) {
    if (auto done = stream_.apply(reader, entry, now, effects); !done) return done;
  }
  last_progress_ = now;
  return {};
}

Result<void> Coordinator::check_change(const Signature& signature) const {
  if (signature.kind == Kind::AddProcessSet) return world_.check_addition(signature.ranks);
  if (signature.root != 0 && world_.find_set(signature.root) != nullptr) return {};
  return Error{.code = Code::InvalidArgument,
               .message = "Process set " + std::to_string(signature.root) + " cannot be removed"};
}

Result<void> Coordinator::emit_changes(TimePoint now, Effects& effects) {
  for (KeyState* key_state : changes_) {
    auto fine = check_change(key_state->tally.statements.front().canonical->signature);
    if (!fine) {
      Error error = std::move(fine).error();
      error.tensor = full_name(key_state->key);
      failing_.push_back({key_state, std::move(error)});
      if (auto done = emit_failures(now, effects); !done) return done;
      continue;
    }
    // Ready operations of a set that is removed were dispatched above. The remaining ones fail.
    if (auto done = emit_dispatch({&key_state, 1}, now, effects); !done) return done;
  }
  changes_.clear();
  return {};
}

void Coordinator::set_removed(const ProcessSet& set, std::span<KeyState* const> key_states,
                              TimePoint now) {
  for (const KeyState* key_state : key_states) {
    if (key_state->tally.track != 0) timeline_->refused(key_state->tally.track, now);
  }
  const std::string prefix = group_prefix(set.id, set.generation);
  std::erase_if(groups_, [&](const auto& group) { return group.first.starts_with(prefix); });
}

Result<void> Coordinator::emit_failures(TimePoint now, Effects& effects) {
  for (const Failing& failing : failing_) {
    KeyState& key_state = *failing.key_state;
    if (key_state.tally.track != 0)
      timeline_->refused(std::exchange(key_state.tally.track, 0), now);
    down().fail(ResponseCache::reference(key_state, key_state.tally.statements.front().group),
                static_cast<std::uint8_t>(failing.error.code), failing.error.message,
                failing.error.tensor, failing.error.missing);
    if (auto done = apply(now, effects); !done) return done;
  }
  failing_.clear();
  return {};
}

Result<void> Coordinator::emit_dispatches(TimePoint now, Effects& effects) {
  Result<void> done;
  if (ready_.size() == 1) {
    done = emit_dispatch(ready_, now, effects);
  } else {
    std::vector<Ready> ready;
    ready.reserve(ready_.size());
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      ready.push_back({.signature = &ready_[i]->tally.statements.front().canonical->signature,
                       .bytes = bytes_of(*ready_[i]),
                       .process_set = ready_[i]->key.process_set,
                       .group = ready_groups_[i]});
    }
    std::vector<KeyState*> batch;
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

std::size_t Coordinator::bytes_of(const KeyState& key_state) const {
  const Signature& signature = key_state.tally.statements.front().canonical->signature;
  if (!rules_of(signature.kind).rows_may_differ) return signature.bytes();
  // Each rank may have another number of rows, so only an upper bound is known.
  const auto members = static_cast<std::size_t>(set_of(key_state).members.count());
  return ((std::size_t{1} << key_state.tally.size_class) - 1) * members;
}

Result<void> Coordinator::define(KeyState& key_state, TimePoint now, Effects& effects) {
  if (cache_.capacity() == 0) return {};
  const Statement& statement = key_state.tally.statements.front();
  // Changes of process sets are rare. A cache id for them would only evict another.
  if (is_set_change(statement.canonical->signature.kind)) return {};
  const bool cached =
      key_state.definition != nullptr && key_state.definition->value.group == statement.group;
  if (!cached && worth_an_id(key_state.key)) {
    down().define(in_full(key_state.key, statement.group));
    if (auto done = apply(now, effects); !done) return done;
  }
  // Several statements differ in who brings something, which may change from use to use.
  for (std::size_t i = 0; i < key_state.tally.said; ++i) {
    const CanonicalSignature& said = *key_state.tally.statements[i].canonical;
    if (said.id != 0 || cache_.canonical_of(said.signature)->id != 0) continue;
    down().define(said.signature);
    if (auto done = apply(now, effects); !done) return done;
  }
  return {};
}

Result<void> Coordinator::emit_dispatch(std::span<KeyState* const> batch, TimePoint now,
                                        Effects& effects) {
  for (KeyState* key_state : batch) {
    if (auto done = define(*key_state, now, effects); !done) return done;
  }
  wire::Writer writer = down();
  writer.dispatch(batch.front()->key.process_set, static_cast<std::uint32_t>(batch.size()));
  for (KeyState* key_state : batch) {
    Statement& statement = key_state->tally.statements.front();
    if (statement.canonical->id == 0) {
      statement.canonical = cache_.canonical_of(statement.canonical->signature);
    }
    // If the batch is larger than the capacity, some ids have been evicted again already.
    writer.item(ResponseCache::reference(*key_state, statement.group), statement.canonical->id,
                statement.canonical->signature);
    if (Track& track = key_state->tally.track; track != 0) {
      // A barrier and a change of sets move no data: the timeline only shows which rank came when.
      const Kind kind = statement.canonical->signature.kind;
      const bool runs_here = kind != Kind::Barrier && !is_set_change(kind) &&
                             !statement.canonical->signature.absent &&
                             set_of(*key_state).members.contains(world_.self());
      timeline_->negotiated(track, runs_here, now);
      if (!runs_here) track = 0;
    }
  }
  return apply(now, effects);
}

void Coordinator::send(Effects& effects) {
  if (!world_.tree().children.empty()) {
    const std::size_t begin = effects.bytes.size();
    effects.bytes.insert(effects.bytes.end(), message_.begin(), message_.end());
    for (Rank child : world_.tree().children) {
      effects.sends.push_back({.to = child, .begin = begin, .end = effects.bytes.size()});
    }
  }
  message_.clear();
  cache_.forget(seen(stream_.position()));
}

std::vector<Rank> Coordinator::missing(const KeyState& key_state) const {
  const ProcessSet* set = world_.find_set(key_state.key.process_set, key_state.key.generation);
  if (set == nullptr) return {};
  RankSet ranks = set->members;
  ranks.remove(key_state.tally.reported);
  ranks.remove(joined_);
  return ranks.to_vector();
}

std::vector<Negotiator::Pending> Coordinator::owed(Rank rank) const {
  std::vector<Negotiator::Pending> all;
  for (const KeyState* key_state = open_.oldest(); key_state != nullptr;
       key_state = key_state->newer) {
    auto absent = missing(*key_state);
    if (!std::ranges::binary_search(absent, rank)) continue;
    all.push_back({.name = full_name(key_state->key), .missing = std::move(absent)});
  }
  return all;
}

void Coordinator::tick(TimePoint now, Effects& effects) {
  if (stopped() || fatal_) return;
  const KeyState* const oldest = stall_.enabled() ? unless_aside(open_.oldest()) : nullptr;
  if (oldest != nullptr && now >= stall_.due(oldest->tally.since)) {
    std::vector<Waiting> waiting;
    for (const KeyState* key_state = oldest; key_state != nullptr;
         key_state = unless_aside(key_state->newer)) {
      if (now - key_state->tally.since < stall_.warning()) continue;
      waiting.push_back({full_name(key_state->key), key_state->tally.since, missing(*key_state),
                         key_state->tally.reported});
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
  if (const auto due = next_look(); due && now >= *due) look_for_conflicts_ = true;
  check_deadlock(now, effects);
}

Duration Coordinator::conflict_age() const { return deadlock_ / NegotiatorOptions::kSaySo; }

/// When to look for operations that contradict each other and are old enough to be taken for wrong.
std::optional<TimePoint> Coordinator::next_look() const {
  if (open_.oldest() == nullptr || deadlock_ <= Duration::zero()) return std::nullopt;
  return std::max(open_.oldest()->tally.since, looked_) + conflict_age();
}

/// Fails operations that can never become complete although every rank concerned waits for them.
void Coordinator::find_conflicting(TimePoint now) {
  if (stopped() || !complete_.empty() || !ready_.empty()) return;
  looked_ = now;
  const auto set_of_key = [this](const KeyState& key_state) -> const ProcessSet& {
    return set_of(key_state);
  };
  for (Conflict& conflict :
       find_conflicts(open_.oldest(), set_of_key, blocked_, joined_, now - conflict_age())) {
    for (KeyState* key_state : conflict.key_states) {
      conflict.error.tensor = full_name(key_state->key);
      failing_.push_back({key_state, conflict.error});
    }
  }
}

RankSet Coordinator::live() const {
  RankSet live = world_.everyone();
  live.remove(joined_);
  return live;
}

/// Every rank waits, and nothing is complete. Where no rank has another thread that could submit
/// something, that is the end of it. Else it is said, and such a thread gets time.
void Coordinator::check_deadlock(TimePoint now, Effects& effects) {
  const RankSet live = this->live();
  if (deadlock_ <= Duration::zero() || live.empty() || !blocked_.covers(live)) return;
  const TimePoint end = last_progress_ + deadlock_;
  if (!certain_.covers(live) && now < end) {
    if (!std::exchange(deadlock_told_, true)) {
      const auto left = std::chrono::ceil<std::chrono::seconds>(end - now);
      effects.warnings.push_back(describe_deadlock(live) + ". The world ends in " +
                                 std::to_string(left.count()) +
                                 " s unless another thread of a rank submits one of them");
    }
    return;
  }
  Error error{.code = Code::Timeout,
              .message = describe_deadlock(live),
              .tensor = blocked_on_[static_cast<std::size_t>(live.lowest())],
              .missing = {},
              .waited_s = std::chrono::duration<double>(now - last_progress_).count(),
              .cause = nullptr};
  effects.fatal = std::move(error);
  fatal_ = true;
}

std::string Coordinator::describe_deadlock(const RankSet& live) const {
  std::string text = "Deadlock: every rank waits, and no operation was submitted by all of them:";
  const char* separator = " ";
  live.for_each([&](Rank rank) {
    text +=
        separator + world_.who(rank) + " waits for " + blocked_on_[static_cast<std::size_t>(rank)];
    separator = "; ";
  });
  return text + ". Ranks must submit the same operations before they wait. " +
         question_about(blocked_on_, live);
}

std::optional<TimePoint> Coordinator::next_tick() const {
  if (stopped() || fatal_) return std::nullopt;
  std::optional<TimePoint> at;
  const KeyState* const oldest = stall_.enabled() ? unless_aside(open_.oldest()) : nullptr;
  if (oldest != nullptr) at = stall_.due(oldest->tally.since);
  if (const auto look = next_look()) at = at ? std::min(*at, *look) : *look;
  if (!blocked_.empty() && deadlock_ > Duration::zero()) {
    const RankSet live = this->live();
    if (blocked_.covers(live)) {
      const bool now = certain_.covers(live) || !deadlock_told_;
      const TimePoint due = now ? TimePoint{} : last_progress_ + deadlock_;
      at = at ? std::min(*at, due) : due;
    }
  }
  return at;
}

}  // namespace farandole

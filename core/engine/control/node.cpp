#include "engine/control/node.h"

#include <algorithm>
#include <limits>

namespace rueda {

namespace {

/// Numbers may be forgotten above once everybody below has seen that they were given up. A rank
/// that has nothing to report says so after that many.
constexpr std::uint64_t kForgottenPerMessage = 256;

}  // namespace

Node::Node(const World& world, Glossary& glossary, Duration stall_warning)
    : Collector(world, glossary),
      patience_(stall_warning / 2),
      leaf_(world.tree().children.empty()) {}

Result<void> Node::report(const Report& report, TimePoint now) {
  if (stopped()) return {};
  Term& term = report.term;
  if (leaf_) {
    pass_on(term, report.meaning, report.group, report.size_class, true);
    return {};
  }
  Tally& tally = term.tally;
  if (tally.apart || !joined_.empty()) {
    pass_on_apart(term, report.meaning, report.group, report.size_class, report.who,
                  now - report.since);
    return {};
  }
  if (!tally.open) {
    tally.open = true;
    tally.since = report.since;
    open_.append(term);
  }
  tally.since = std::min(tally.since, report.since);
  tally.size_class = std::max(tally.size_class, report.size_class);
  const bool equal = tally.add(report.meaning, report.group, report.who);
  if (!equal || report.aged) {
    take_apart(term, now);
  } else if (tally.reported.covers(report.set.below)) {
    pass_on(term, report.meaning, report.group, tally.size_class, true);
    settle(term);
  }
  return {};
}

Result<void> Node::join(Rank rank, TimePoint now) {
  if (joined_.contains(rank)) return nonsense(world_, rank, "joins twice");
  joined_.add(rank);
  // What was reported before must reach the caller before the news that this rank has joined.
  while (Term* term = open_.oldest()) take_apart(*term, now);
  up().join(rank);
  return {};
}

/// The caller looks for what can never be complete: it has to know who said what.
void Node::blocked(Rank rank, std::uint64_t position, std::string_view name, TimePoint now) {
  while (Term* term = open_.oldest()) take_apart(*term, now);
  up().blocked(rank, position, name);
}

void Node::settle(Term& term) {
  if (!term.tally.open) return;
  if (!term.tally.apart) open_.remove(term);
  term.tally.clear();
}

void Node::tick(TimePoint now) {
  if (patience_ <= Duration::zero()) return;
  while (Term* term = open_.oldest()) {
    if (now < term->tally.since + patience_) return;
    take_apart(*term, now);
  }
}

std::optional<TimePoint> Node::next_tick() const {
  if (patience_ <= Duration::zero() || open_.oldest() == nullptr) return std::nullopt;
  return open_.oldest()->tally.since + patience_;
}

void Node::flush(std::uint64_t position, Effects& effects) {
  if (message_.empty() && glossary_.forgotten() < forgotten_ + kForgottenPerMessage) return;
  forgotten_ = glossary_.forgotten();
  const std::size_t begin = effects.bytes.size();
  wire::Writer(effects.bytes)
      .header({.direction = wire::Direction::Up, .position = seen(position)});
  effects.bytes.insert(effects.bytes.end(), message_.begin(), message_.end());
  effects.sends.push_back(
      {.to = *world_.tree().parent, .begin = begin, .end = effects.bytes.size()});
  message_.clear();
  origin_ = -1;
  age_ms_ = 0;
}

void Node::pass_on(Term& term, const MeaningPtr& meaning, std::string_view group,
                   std::uint8_t size_class, bool whole) {
  const wire::KeyRef key = Glossary::reference(term, group);
  const std::uint32_t instance = key.number != 0 ? term.definition->value.uses : 0;
  up().ready(key, meaning->number, meaning->signature, instance, size_class, whole);
}

void Node::pass_on_apart(Term& term, const MeaningPtr& meaning, std::string_view group,
                         std::uint8_t size_class, const RankSet& who, Duration age) {
  const auto age_ms = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(age).count(),
                               0, std::numeric_limits<std::int32_t>::max()));
  if (age_ms != age_ms_) up().age(age_ms_ = age_ms);
  who.for_each([&](Rank rank) {
    if (rank != origin_) up().origin(origin_ = rank);
    pass_on(term, meaning, group, size_class, false);
  });
}

void Node::take_apart(Term& term, TimePoint now) {
  Tally& tally = term.tally;
  tally.apart = true;
  open_.remove(term);
  for (std::size_t i = 0; i < tally.said; ++i) {
    const Statement& statement = tally.statements[i];
    pass_on_apart(term, statement.meaning, statement.group, tally.size_class, statement.ranks,
                  now - tally.since);
  }
}

}  // namespace rueda

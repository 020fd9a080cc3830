#include "engine/control/tree_node.h"

#include <algorithm>
#include <limits>

namespace farandole {

namespace {

/// Ranks above drop retired cache ids when all ranks below have seen the retirement, which a
/// message up tells them. A rank that has nothing to report sends an empty message after so many of
/// them.
constexpr std::uint64_t kForgottenPerMessage = 256;

}  // namespace

TreeNode::TreeNode(const World& world, ResponseCache& cache, Duration patience)
    : Collector(world, cache), patience_(patience), leaf_(world.tree().children.empty()) {}

Result<void> TreeNode::report(const Report& report, TimePoint now) {
  if (stopped()) return {};
  KeyState& key_state = report.key_state;
  if (leaf_) {
    pass_on(key_state, report.canonical, report.group, report.size_class, true);
    return {};
  }
  Tally& tally = key_state.tally;
  if (tally.apart || !joined_.empty()) {
    pass_on_apart(key_state, report.canonical, report.group, report.size_class, report.who,
                  now - report.since);
    return {};
  }
  if (!tally.open) {
    tally.open = true;
    tally.since = report.since;
    open_.append(key_state);
  }
  tally.since = std::min(tally.since, report.since);
  tally.size_class = std::max(tally.size_class, report.size_class);
  const bool equal = tally.add(report.canonical, report.group, report.who);
  if (!equal || report.aged) {
    take_apart(key_state, now);
  } else if (tally.reported.covers(report.set.below)) {
    pass_on(key_state, report.canonical, report.group, tally.size_class, true);
    settle(key_state);
  }
  return {};
}

Result<void> TreeNode::join(Rank rank, TimePoint now) {
  if (joined_.contains(rank)) return malformed(world_, rank, "joins twice");
  joined_.add(rank);
  // Earlier reports must reach the coordinator before the join.
  while (KeyState* key_state = open_.oldest()) take_apart(*key_state, now);
  up().join(rank);
  return {};
}

/// The coordinator looks for operations that can never become complete, so it has to know which
/// rank reported what.
void TreeNode::blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name,
                       TimePoint now) {
  while (KeyState* key_state = open_.oldest()) take_apart(*key_state, now);
  up().blocked(rank, position, certain, name);
}

void TreeNode::settle(KeyState& key_state) {
  if (!key_state.tally.open) return;
  if (!key_state.tally.apart) open_.remove(key_state);
  key_state.tally.clear();
}

void TreeNode::tick(TimePoint now) {
  if (patience_ <= Duration::zero()) return;
  while (KeyState* key_state = open_.oldest()) {
    if (now < key_state->tally.since + patience_) return;
    take_apart(*key_state, now);
  }
}

std::optional<TimePoint> TreeNode::next_tick() const {
  if (patience_ <= Duration::zero() || open_.oldest() == nullptr) return std::nullopt;
  return open_.oldest()->tally.since + patience_;
}

void TreeNode::flush(std::uint64_t position, Effects& effects) {
  if (message_.empty() && cache_.forgotten() < forgotten_ + kForgottenPerMessage) return;
  forgotten_ = cache_.forgotten();
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

void TreeNode::pass_on(KeyState& key_state, const CanonicalSignaturePtr& canonical,
                       std::string_view group, std::uint8_t size_class, bool whole) {
  const wire::KeyRef key = ResponseCache::reference(key_state, group);
  const std::uint32_t instance = key.id != 0 ? key_state.definition->value.uses : 0;
  up().ready(key, canonical->id, canonical->signature, instance, size_class, whole);
}

void TreeNode::pass_on_apart(KeyState& key_state, const CanonicalSignaturePtr& canonical,
                             std::string_view group, std::uint8_t size_class, const RankSet& who,
                             Duration age) {
  const auto age_ms = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(age).count(),
                               0, std::numeric_limits<std::int32_t>::max()));
  if (age_ms != age_ms_) up().age(age_ms_ = age_ms);
  who.for_each([&](Rank rank) {
    if (rank != origin_) up().origin(origin_ = rank);
    pass_on(key_state, canonical, group, size_class, false);
  });
}

void TreeNode::take_apart(KeyState& key_state, TimePoint now) {
  Tally& tally = key_state.tally;
  tally.apart = true;
  open_.remove(key_state);
  for (std::size_t i = 0; i < tally.said; ++i) {
    const Statement& statement = tally.statements[i];
    pass_on_apart(key_state, statement.canonical, statement.group, tally.size_class,
                  statement.ranks, now - tally.since);
  }
}

}  // namespace farandole

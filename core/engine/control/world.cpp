#include "engine/control/world.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "text.h"

namespace farandole {

namespace {

constexpr std::size_t kArity = 32;

/// Parents by rank; -1 at the root. With up to 33 groups the formula gives leader 0 as the parent
/// of every other leader.
std::vector<Rank> parents(const std::vector<std::vector<Rank>>& groups) {
  std::size_t size = 0;
  for (const auto& group : groups) size += group.size();
  std::vector<Rank> parent(size, -1);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Rank leader = groups[g].front();
    for (Rank rank : groups[g]) parent[static_cast<std::size_t>(rank)] = leader;
    parent[static_cast<std::size_t>(leader)] = g == 0 ? -1 : groups[(g - 1) / kArity].front();
  }
  return parent;
}

}  // namespace

ControlTree control_tree(const std::vector<std::vector<Rank>>& groups, Rank self) {
  const std::vector<Rank> parent = parents(groups);
  ControlTree tree{.self = self, .parent = {}, .children = {}};
  if (parent[static_cast<std::size_t>(self)] >= 0)
    tree.parent = parent[static_cast<std::size_t>(self)];
  for (std::size_t rank = 0; rank < parent.size(); ++rank) {
    if (parent[rank] == self) tree.children.push_back(static_cast<Rank>(rank));
  }
  return tree;
}

World::World(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts,
             Rank self)
    : tree_(control_tree(groups, self)), hosts_(std::move(hosts)), below_(tree_.children.size()) {
  const std::vector<Rank> parent = parents(groups);
  size_ = static_cast<int>(parent.size());
  subtree_.add(self);
  if (!tree_.children.empty()) {
    // Parents have lower ranks than their children, so one pass in ascending order suffices.
    std::vector<Rank> below(parent.size(), -1);
    for (Rank rank = self + 1; rank < size_; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      const Rank above = parent[index];
      below[index] = above == self ? rank : below[static_cast<std::size_t>(above)];
      if (below[index] < 0) continue;
      below_[*child_index(below[index])].add(rank);
      subtree_.add(rank);
    }
  }
  group_of_.resize(parent.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const Rank rank : groups[group]) {
      group_of_[static_cast<std::size_t>(rank)] = static_cast<int>(group);
    }
  }
  sets_.push_back({.id = 0,
                   .generation = 0,
                   .channel = 0,
                   .members = RankSet::all(size_),
                   .shares = groups_shared_by(RankSet::all(size_)),
                   .below = subtree_,
                   .by_child = below_});
}

Result<void> check_members(std::span<const Rank> ranks, int world_size) {
  const auto wrong = [](std::string what) {
    return Error{.code = Code::InvalidArgument, .message = "A process set " + std::move(what)};
  };
  if (ranks.empty()) return wrong("needs at least one rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size) {
      return wrong("cannot have rank " + std::to_string(ranks[i]) + ": ranks are 0 to " +
                   std::to_string(world_size - 1));
    }
    if (i == 0 || ranks[i - 1] < ranks[i]) continue;
    if (ranks[i - 1] == ranks[i]) return wrong("has rank " + std::to_string(ranks[i]) + " twice");
    return wrong("lists its ranks in ascending order");
  }
  return {};
}

Result<void> World::check_addition(std::span<const Rank> ranks) const {
  if (auto fine = check_members(ranks, size_); !fine) return fine;
  RankSet members;
  for (Rank rank : ranks) members.add(rank);
  for (const ProcessSet& set : sets_) {
    if (!set.members.equals(members)) continue;
    return Error{.code = Code::InvalidArgument,
                 .message = "duplicate process set: process set " + std::to_string(set.id) +
                            " has the same ranks"};
  }
  if (freed_.empty() && sets_.size() >= kMaxProcessSets) {
    return Error{.code = Code::InvalidArgument,
                 .message = "there are " + std::to_string(kMaxProcessSets - 1) +
                            " process sets already: remove one first"};
  }
  return {};
}

const ProcessSet& World::add_set(std::span<const Rank> ranks) {
  auto id = static_cast<std::int32_t>(sets_.size());
  if (freed_.empty()) {
    sets_.emplace_back();
  } else {
    id = freed_.front();
    freed_.pop_front();
  }
  ProcessSet& set = sets_[static_cast<std::size_t>(id)];
  set.id = id;
  set.generation = ++generations_;
  for (Rank rank : ranks) set.members.add(rank);
  set.below = subtree_.common(set.members);
  for (const RankSet& child : below_) set.by_child.push_back(child.common(set.members));
  set.shares = groups_shared_by(set.members);
  set.channel = free_channel(set.shares);
  return set;
}

RankSet World::groups_shared_by(const RankSet& members) const {
  RankSet seen;
  RankSet shared;
  for (const Rank rank : members.to_vector()) {
    const int group = group_of_[static_cast<std::size_t>(rank)];
    (seen.contains(group) ? shared : seen).add(group);
  }
  return shared;
}

/// Sets on different hosts may have the same one.
int World::free_channel(const RankSet& shares) const {
  if (shares.empty()) return kNoChannel;
  std::bitset<kShmChannels> taken;
  for (const ProcessSet& set : sets_) {
    if (set.channel != kNoChannel && set.shares.overlaps(shares)) {
      taken.set(static_cast<std::size_t>(set.channel));
    }
  }
  for (int channel = 0; channel < kShmChannels; ++channel) {
    if (!taken.test(static_cast<std::size_t>(channel))) return channel;
  }
  return kNoChannel;
}

void World::remove_set(std::int32_t id) {
  sets_[static_cast<std::size_t>(id)] = {};
  freed_.push_back(id);
}

std::optional<std::size_t> World::child_index(Rank rank) const noexcept {
  // Children are in ascending order.
  const auto at = std::ranges::lower_bound(tree_.children, rank);
  if (at == tree_.children.end() || *at != rank) return std::nullopt;
  return static_cast<std::size_t>(at - tree_.children.begin());
}

const ProcessSet* World::find_set(std::int32_t id, std::uint32_t generation) const noexcept {
  const ProcessSet* set = find_set(id);
  return set != nullptr && set->generation == generation ? set : nullptr;
}

const ProcessSet* World::find_set(std::int32_t id) const noexcept {
  if (id < 0 || static_cast<std::size_t>(id) >= sets_.size()) return nullptr;
  const ProcessSet& set = sets_[static_cast<std::size_t>(id)];
  return set.members.empty() ? nullptr : &set;
}

std::optional<std::vector<Rank>> World::towards(std::uint32_t generation) const {
  const auto set = std::ranges::find_if(sets_, [&](const ProcessSet& one) {
    return one.generation == generation && !one.members.empty();
  });
  if (set == sets_.end()) return std::nullopt;
  std::vector<Rank> neighbours;
  for (std::size_t i = 0; i < tree_.children.size(); ++i) {
    if (!set->by_child[i].empty()) neighbours.push_back(tree_.children[i]);
  }
  if (tree_.parent && !set->below.covers(set->members)) neighbours.push_back(*tree_.parent);
  return neighbours;
}

std::uint64_t World::last_position(const ProcessSet& set) const noexcept {
  std::uint64_t last = event_;
  for (const ProcessSet& other : sets_) {
    if (other.dispatched > last && other.members.overlaps(set.members)) last = other.dispatched;
  }
  return last;
}

std::map<std::int32_t, std::vector<Rank>> World::sets() const {
  std::map<std::int32_t, std::vector<Rank>> all;
  for (const ProcessSet& set : sets_) {
    if (!set.members.empty()) all.emplace(set.id, set.members.to_vector());
  }
  return all;
}

std::string World::who(Rank rank) const { return rank_on_host(rank, hosts_); }

std::string to_string(const RankSet& ranks) { return list_ranks(ranks.to_vector()); }

}  // namespace farandole

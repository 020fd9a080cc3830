#include "engine/world.h"

#include <algorithm>
#include <utility>

namespace rueda {

namespace {

constexpr std::size_t kArity = 32;

/// By rank; -1 at the root. Up to 32 groups the formula gives leader 0 to all leaders.
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
  ProcessSet world{
      .id = 0, .generation = 0, .members = RankSet::all(size_), .below = {}, .by_child = {}};
  world.below.add(self);
  for (Rank rank = 0; rank < size_; ++rank) {
    Rank at = rank;
    Rank from = -1;
    while (at >= 0 && at != self) {
      from = at;
      at = parent[static_cast<std::size_t>(at)];
    }
    if (at != self || from < 0) continue;
    below_[*child_index(from)].add(rank);
    world.below.add(rank);
  }
  world.by_child = below_;
  sets_.push_back(std::move(world));
}

std::optional<std::size_t> World::child_index(Rank rank) const noexcept {
  // Children are in ascending order.
  const auto at = std::ranges::lower_bound(tree_.children, rank);
  if (at == tree_.children.end() || *at != rank) return std::nullopt;
  return static_cast<std::size_t>(at - tree_.children.begin());
}

const ProcessSet* World::find_set(std::int32_t id, std::uint32_t generation) const noexcept {
  for (const ProcessSet& set : sets_) {
    if (set.id == id && set.generation == generation) return &set;
  }
  return nullptr;
}

std::string World::who(Rank rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (has(rank) && static_cast<std::size_t>(rank) < hosts_.size()) {
    text += " (host " + hosts_[static_cast<std::size_t>(rank)] + ")";
  }
  return text;
}

std::string to_string(const RankSet& ranks) {
  std::string text = ranks.count() == 1 ? "rank " : "ranks ";
  const std::vector<Rank> all = ranks.to_vector();
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < all.size() && all[last + 1] == all[last] + 1) ++last;
    if (i != 0) text += ", ";
    text += std::to_string(all[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(all[last]);
    i = last;
  }
  return text;
}

}  // namespace rueda

/// Who takes part: ranks, hosts, the control tree and the process sets, as one rank sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/rank_set.h"
#include "types.h"

namespace rueda {

/// This rank's place in the control tree.
struct ControlTree {
  Rank self = 0;
  std::optional<Rank> parent;  ///< none at the caller
  std::vector<Rank> children;
};

/// The tree that all ranks derive from the transport groups: a group's first rank leads it; leaders
/// report to leader 0 up to 32 groups, beyond that in a 32-ary tree of leaders in order.
[[nodiscard]] ControlTree control_tree(const std::vector<std::vector<Rank>>& groups, Rank self);

struct ProcessSet {
  std::int32_t id = 0;
  std::uint32_t generation = 0;  ///< keeps a re-used id apart
  RankSet members;
  RankSet below;                  ///< members in this rank's subtree
  std::vector<RankSet> by_child;  ///< members in each child's subtree
};

class World {
 public:
  World(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts, Rank self);

  [[nodiscard]] Rank self() const noexcept { return tree_.self; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const ControlTree& tree() const noexcept { return tree_; }
  [[nodiscard]] const RankSet& everyone() const noexcept { return sets_.front().members; }
  [[nodiscard]] const RankSet& below(std::size_t child) const noexcept { return below_[child]; }
  [[nodiscard]] std::optional<std::size_t> child_index(Rank rank) const noexcept;
  /// Null if there is no such set (any more).
  [[nodiscard]] const ProcessSet* find_set(std::int32_t id,
                                           std::uint32_t generation) const noexcept;
  [[nodiscard]] bool has(Rank rank) const noexcept { return rank >= 0 && rank < size_; }
  /// "rank 3 (host b)"
  [[nodiscard]] std::string who(Rank rank) const;

 private:
  ControlTree tree_;
  int size_ = 0;
  std::vector<std::string> hosts_;
  std::vector<RankSet> below_;    // by child: its subtree
  std::vector<ProcessSet> sets_;  // the first is the world
};

/// "rank 3" / "ranks 0, 2-5, 7"
[[nodiscard]] std::string to_string(const RankSet& ranks);

}  // namespace rueda

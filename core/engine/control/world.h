/// Ranks, hosts, the control tree and process sets, as one rank sees them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/rank_set.h"
#include "result.h"
#include "transport/shm_layout.h"
#include "types.h"

namespace farandole {

/// This rank's place in the control tree.
struct ControlTree {
  Rank self = 0;
  std::optional<Rank> parent;  ///< none at the coordinator, rank 0
  std::vector<Rank> children;
};

/// The control tree, which every rank derives from the transport groups. The ranks of a group
/// report to its first rank, the leader. Leaders form a 32-ary tree in the order of their groups:
/// with up to 33 groups, all report to leader 0.
[[nodiscard]] ControlTree control_tree(const std::vector<std::vector<Rank>>& groups, Rank self);

/// How many process sets can exist at once, the world included. Every rank keeps all of them.
inline constexpr std::int32_t kMaxProcessSets = 16384;

struct ProcessSet {
  std::int32_t id = 0;
  std::uint32_t generation =
      0;  ///< tells sets apart that had the same id: counts all sets that were ever added
  /// In the segments of the hosts where several of its members are: the lowest that no other set
  /// has there. None: its members share no memory, or all channels of a host are taken.
  int channel = kNoChannel;
  RankSet members;  ///< empty: there is no set of that id now
  RankSet shares;   ///< the transport groups, by number, that have several of its members
  RankSet below;    ///< members in this rank's subtree
  std::vector<RankSet> by_child;  ///< members in each child's subtree
  std::uint64_t dispatched = 0;   ///< position of the last dispatch to this set
};

/// Checks the members of a process set: they ascend, do not repeat, and are ranks of the world.
[[nodiscard]] Result<void> check_members(std::span<const Rank> ranks, int world_size);

class World {
 public:
  World(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts, Rank self);

  // The table of sets changes at the same positions of the stream on every rank, by the same rules.
  // So ids and generations are the same on every rank.
  /// Fails, with the reason, if such a set cannot be added now.
  [[nodiscard]] Result<void> check_addition(std::span<const Rank> ranks) const;
  /// Adds a set that check_addition() allows. The id that was freed first is reused first.
  const ProcessSet& add_set(std::span<const Rank> ranks);
  void remove_set(std::int32_t id);
  /// Something of that set is dispatched at this position of the stream. The set exists.
  void note_dispatch(const ProcessSet& set, std::uint64_t position) noexcept {
    sets_[static_cast<std::size_t>(set.id)].dispatched = position;
  }
  /// What happens at this position may concern any rank.
  void note_event(std::uint64_t position) noexcept { event_ = position; }
  /// The neighbours in the control tree behind which there are members of the set of that
  /// generation. None: there is no such set now.
  [[nodiscard]] std::optional<std::vector<Rank>> towards(std::uint32_t generation) const;
  /// The last position that concerns a member of the set.
  [[nodiscard]] std::uint64_t last_position(const ProcessSet& set) const noexcept;

  [[nodiscard]] Rank self() const noexcept { return tree_.self; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const ControlTree& tree() const noexcept { return tree_; }
  [[nodiscard]] const RankSet& everyone() const noexcept { return sets_.front().members; }
  [[nodiscard]] const RankSet& below(std::size_t child) const noexcept { return below_[child]; }
  [[nodiscard]] std::optional<std::size_t> child_index(Rank rank) const noexcept;
  /// Null if there is no such set (any more).
  [[nodiscard]] const ProcessSet* find_set(std::int32_t id,
                                           std::uint32_t generation) const noexcept;
  /// The set that has that id now; null if there is none.
  [[nodiscard]] const ProcessSet* find_set(std::int32_t id) const noexcept;
  /// True if a set of that generation existed and was removed.
  [[nodiscard]] bool was_removed(std::int32_t id, std::uint32_t generation) const noexcept {
    return generation <= generations_ && find_set(id, generation) == nullptr;
  }
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> sets() const;
  [[nodiscard]] bool has(Rank rank) const noexcept { return rank >= 0 && rank < size_; }
  /// "rank 3 on host b"
  [[nodiscard]] std::string who(Rank rank) const;

 private:
  [[nodiscard]] RankSet groups_shared_by(const RankSet& members) const;
  [[nodiscard]] int free_channel(const RankSet& shares) const;

  ControlTree tree_;
  int size_ = 0;
  std::vector<int> group_of_;  // by rank, the number of its transport group
  std::vector<std::string> hosts_;
  RankSet subtree_;              // this rank and all below it
  std::vector<RankSet> below_;   // by child: its subtree
  std::deque<ProcessSet> sets_;  // by id; the first is the world
  std::deque<std::int32_t> freed_;
  std::uint32_t generations_ = 0;  // sets added so far
  std::uint64_t event_ = 0;        // position of the last event that may concern anybody
};

/// "rank 3" / "ranks 0, 2-5, 7"
[[nodiscard]] std::string to_string(const RankSet& ranks);

}  // namespace farandole

/// Hosts of a set as one of its members sees them: who carries bytes between them, and operations
/// inside and between them that overlap, round by round.
///
/// A host is a group of members that share memory. Hosts are counted in the order of their first
/// members, which is that of the association; members of a host in the order of their set ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "backends/backend.h"
#include "backends/operation.h"

namespace farandole {

struct HostPlan {
  int host = 0;   ///< own place among the hosts
  int index = 0;  ///< own place among the members of the own host
  int here = 1;   ///< members of the own host
  int hosts = 1;
  /// How many members of each host carry bytes between hosts: the first ones, as many as the
  /// smallest host has. A carrier exchanges with the carriers of the same index on the other hosts.
  int carriers = 1;

  [[nodiscard]] bool carries() const noexcept { return index < carriers; }
  [[nodiscard]] bool all_carry() const noexcept { return here == carriers; }

  static HostPlan of(const Members& members) {
    HostPlan plan;
    plan.hosts = static_cast<int>(members.groups.size());
    std::size_t least = members.ranks.size();
    for (std::size_t h = 0; h < members.groups.size(); ++h) {
      const std::vector<int>& group = members.groups[h];
      least = std::min(least, group.size());
      const auto own = std::find(group.begin(), group.end(), members.self);
      if (own == group.end()) continue;
      plan.host = static_cast<int>(h);
      plan.index = static_cast<int>(own - group.begin());
      plan.here = static_cast<int>(group.size());
    }
    plan.carriers = static_cast<int>(least);
    return plan;
  }
};

/// The members of the own host alone, as one group.
[[nodiscard]] inline Members members_of_host(const Members& members) {
  const HostPlan plan = HostPlan::of(members);
  Members together{.ranks = {}, .self = plan.index, .groups = {{}}};
  for (const int member : members.groups[static_cast<std::size_t>(plan.host)]) {
    together.groups.front().push_back(together.size());
    together.ranks.push_back(members.ranks[static_cast<std::size_t>(member)]);
  }
  return together;
}

/// The carriers with the own index, one on each host, in the order of the hosts: so their
/// association is the tree between hosts. Nothing if this member is no carrier.
[[nodiscard]] inline std::optional<Members> carriers_of(const Members& members) {
  const HostPlan plan = HostPlan::of(members);
  if (!plan.carries()) return std::nullopt;
  Members among{.ranks = {}, .self = plan.host, .groups = {}};
  for (const auto& group : members.groups) {
    const int member = group[static_cast<std::size_t>(plan.index)];
    among.groups.push_back({among.size()});
    among.ranks.push_back(members.ranks[static_cast<std::size_t>(member)]);
  }
  return among;
}

/// Every round has three stages, each of them an operation of another backend or nothing:
///
///   before  inside the host: what the carriers need comes to them
///   across  between the hosts, among the carriers
///   after   inside the host: what the carriers got goes to everybody
///
/// Operations of one backend run one after another, in one order on all its members. Between hosts
/// that is round after round. Inside a host it is
///     before 0, before 1, after 0, before 2, after 1, before 3 …
/// whatever arrives first where: so the network has the next round to work on while memory is busy
/// with the last one, and nothing depends on timing.
class HostRounds : public Operation {
 public:
  Result<Step> step() final;
  std::vector<Rank> waiting_for() const final;

 protected:
  /// The same number on every member of every host. None: nothing to do.
  explicit HostRounds(std::size_t rounds) noexcept : rounds_(rounds) {}

 private:
  static constexpr std::size_t kAhead = 2;

  /// Null: this member has nothing to do there.
  virtual std::unique_ptr<Operation> before(std::size_t round) = 0;
  virtual std::unique_ptr<Operation> across(std::size_t round) = 0;
  virtual std::unique_ptr<Operation> after(std::size_t round) = 0;
  /// All stages of that round are over.
  virtual void finish(std::size_t /*round*/) {}

  [[nodiscard]] Result<bool> step_inside();
  [[nodiscard]] Result<bool> step_across();

  std::size_t rounds_;
  std::unique_ptr<Operation> inside_;
  std::unique_ptr<Operation> across_;
  bool preparing_ = false;    // what inside_ is: before or after
  std::size_t prepared_ = 0;  // rounds that have passed each stage
  std::size_t crossed_ = 0;
  std::size_t finished_ = 0;
};

}  // namespace farandole

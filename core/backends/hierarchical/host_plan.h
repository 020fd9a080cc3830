/// How the members of a set lie on hosts, as one of them sees it.
///
/// A host is a group of members that share memory. Hosts are counted in the order of their first
/// members, which is that of the association; members of a host in the order of their set ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "backends/backend.h"

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

}  // namespace farandole

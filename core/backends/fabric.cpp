#include "backends/fabric.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/local.h"
#include "backends/pipes.h"
#include "backends/routed.h"
#include "backends/shm.h"
#include "backends/tcp.h"

namespace rueda {

Fabric::Fabric(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
               std::shared_ptr<Mesh> mesh)
    : self_(self), groups_(std::move(groups)), host_(std::move(host)), mesh_(std::move(mesh)) {
  if (!host_.ranks.empty()) {
    pipes_ = std::make_shared<ShmPipes>(host_.ranks, host_.members, host_.self);
  }
}

Members Fabric::members(std::span<const Rank> ranks) const {
  Members members;
  members.ranks.assign(ranks.begin(), ranks.end());
  const auto set_rank = [&](Rank rank) {
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return at == ranks.end() || *at != rank ? -1 : static_cast<int>(at - ranks.begin());
  };
  members.self = set_rank(self_);
  for (const auto& group : groups_) {
    std::vector<int> together;
    for (const Rank rank : group) {
      if (const int member = set_rank(rank); member >= 0) together.push_back(member);
    }
    if (!together.empty()) members.groups.push_back(std::move(together));
  }
  // The first rank of a group need not be in the set, so the order may change.
  std::sort(members.groups.begin(), members.groups.end());
  return members;
}

std::vector<int> Fabric::local_indices(std::span<const Rank> ranks) const {
  std::vector<int> indices;
  for (const Rank rank : ranks) {
    const auto at = std::find(host_.ranks.begin(), host_.ranks.end(), rank);
    indices.push_back(static_cast<int>(at - host_.ranks.begin()));
  }
  return indices;
}

Result<std::unique_ptr<Backend>> Fabric::open(std::span<const Rank> ranks, int channel) {
  Members members = this->members(ranks);
  if (members.self < 0) {
    return Error{.code = Code::Internal, .message = "A process set without this rank was opened"};
  }
  std::unique_ptr<Backend> backend;
  if (members.size() == 1) {
    backend = std::make_unique<LocalBackend>(std::move(members));
  } else if (members.groups.size() > 1) {
    backend = across_hosts(std::move(members));
  } else if (channel == kNoChannel) {
    auto indices = local_indices(ranks);
    backend = std::make_unique<PipesBackend>(std::move(members), pipes_, std::move(indices));
  } else {
    return in_memory(std::move(members), channel);
  }
  return backend;
}

std::unique_ptr<Backend> Fabric::across_hosts(Members members) const {
  Members together{.ranks = {}, .self = 0, .groups = {{}}};
  for (const auto& group : members.groups) {
    if (std::find(group.begin(), group.end(), members.self) == group.end()) continue;
    for (const int member : group) {
      if (member == members.self) together.self = together.size();
      together.groups.front().push_back(together.size());
      together.ranks.push_back(members.ranks[static_cast<std::size_t>(member)]);
    }
  }
  auto network = std::make_unique<TcpBackend>(members, mesh_);
  if (together.size() == 1) return network;
  auto indices = local_indices(together.ranks);
  auto local = std::make_unique<PipesBackend>(std::move(together), pipes_, std::move(indices));
  return std::make_unique<RoutedBackend>(std::move(members), std::move(local), std::move(network));
}

Result<std::unique_ptr<Backend>> Fabric::in_memory(Members members, int channel) {
  if (channel < 0 || channel >= kShmChannels) {
    return Error{.code = Code::Unsupported,
                 .message = "There is no shared-memory channel " + std::to_string(channel)};
  }
  const auto local_size = static_cast<int>(host_.ranks.size());
  const ShmExtent extent = channel_extent(local_size, channel);
  if (auto reserved = host_.own->reserve(extent.offset, extent.bytes); !reserved) {
    return Error::wrap(std::move(reserved).error(), "Opening a process set");
  }
  std::vector<ShmMember> by_set_rank;
  for (const int index : local_indices(members.ranks)) {
    by_set_rank.push_back(host_.members[static_cast<std::size_t>(index)]);
  }
  return std::unique_ptr<Backend>(
      std::make_unique<ShmBackend>(std::move(members), std::move(by_set_rank), pipes_,
                                   ShmChannelUse{.channel = channel, .fresh = true}));
}

}  // namespace rueda

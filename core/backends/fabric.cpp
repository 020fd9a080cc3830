#include "backends/fabric.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/hierarchical/hierarchical.h"
#include "backends/hierarchical/routed.h"
#include "backends/local/local.h"
#include "backends/shm/pipes_backend.h"
#include "backends/shm/shm.h"
#include "backends/tcp/tcp.h"

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

bool Fabric::is_cut_off(int channel) const noexcept {
  if (channel <= 0 || channel >= kShmChannels) return false;
  return std::ranges::any_of(groups_, [&](const auto& group) {
    const ShmExtent extent = channel_extent(static_cast<int>(group.size()), channel);
    return group.size() > 1 && extent.offset + extent.bytes > segment_limit_;
  });
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
  if (members.size() == 1) {
    return std::unique_ptr<Backend>(std::make_unique<LocalBackend>(std::move(members)));
  }
  if (open_other_) return open_other_(std::move(members));
  if (is_cut_off(channel)) channel = kNoChannel;
  if (members.groups.size() > 1) return across_hosts(std::move(members), channel);
  return in_memory(std::move(members), channel);
}

Result<std::unique_ptr<Backend>> Fabric::across_hosts(Members members, int channel) {
  const auto alone = [](const auto& group) { return group.size() == 1; };
  if (std::all_of(members.groups.begin(), members.groups.end(), alone)) {
    return std::unique_ptr<Backend>(std::make_unique<TcpBackend>(std::move(members), mesh_));
  }
  std::unique_ptr<Backend> local;
  Members together = members_of_host(members);
  if (together.size() > 1) {
    auto opened = in_memory(std::move(together), channel);
    if (!opened) return opened;
    local = *std::move(opened);
  }
  auto network = std::make_unique<TcpBackend>(members, mesh_);
  if (channel == kNoChannel) {
    return std::unique_ptr<Backend>(
        std::make_unique<RoutedBackend>(std::move(members), std::move(local), std::move(network)));
  }
  std::unique_ptr<Backend> carriers;
  if (auto among = carriers_of(members)) {
    carriers = std::make_unique<TcpBackend>(*std::move(among), mesh_);
  }
  return std::unique_ptr<Backend>(std::make_unique<HierarchicalBackend>(
      std::move(members), std::move(local), std::move(network), std::move(carriers)));
}

Result<std::unique_ptr<Backend>> Fabric::in_memory(Members members, int channel) {
  if (channel == kNoChannel) {
    auto indices = local_indices(members.ranks);
    return std::unique_ptr<Backend>(
        std::make_unique<PipesBackend>(std::move(members), pipes_, std::move(indices)));
  }
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

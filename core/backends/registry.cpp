#include "backends/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backends/foreign/foreign.h"
#include "backends/hierarchical/hierarchical.h"
#include "backends/local/local.h"
#include "backends/nccl/communicator.h"
#include "backends/peer/buffers.h"
#include "backends/peer/peer.h"
#include "backends/shm/pipes.h"
#include "backends/shm/shm.h"
#include "backends/tcp/tcp.h"

namespace farandole {

namespace {

/// The first row whose condition holds is taken. The last one serves every set.
constexpr std::array kBackends{
    BackendRow{"local", [](const SetTraits& set) { return set.ranks == 1; }, open_local},
    BackendRow{"foreign", [](const SetTraits& set) { return set.foreign; }, open_foreign},
    BackendRow{"shm", [](const SetTraits& set) { return set.hosts == 1 && set.channel; }, open_shm},
    BackendRow{"pipes", [](const SetTraits& set) { return set.hosts == 1; }, open_pipes},
    BackendRow{"tcp", [](const SetTraits& set) { return set.hosts == set.ranks; }, open_tcp},
    BackendRow{"hierarchical", [](const SetTraits& set) { return set.channel; }, open_hierarchical},
    BackendRow{"routed", [](const SetTraits&) { return true; }, open_routed},
};

/// Opened in this order. Where two could serve, the settings have chosen one.
constexpr std::array kDeviceBackends{
    DeviceBackendRow{"NCCL", true, [](Kind) { return true; }, obstacle_to_nccl, open_nccl},
    DeviceBackendRow{"PEER", false, PeerBackend::moves, obstacle_to_peer, open_peer},
};

}  // namespace

const BackendRow& backend_for(const SetTraits& set) noexcept {
  return *std::ranges::find_if(kBackends, [&](const BackendRow& row) { return row.serves(set); });
}

Result<std::unique_ptr<Backend>> open_backend(Members members, int channel,
                                              const Resources& resources) {
  const SetTraits set{.ranks = members.size(),
                      .hosts = static_cast<int>(members.groups.size()),
                      .channel = channel != kNoChannel,
                      .foreign = static_cast<bool>(resources.foreign)};
  return backend_for(set).open(std::move(members), channel, resources);
}

std::span<const DeviceBackendRow> device_backends() noexcept { return kDeviceBackends; }

BackendFactory::BackendFactory(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
                               std::shared_ptr<Mesh> mesh)
    : self_(self), groups_(std::move(groups)) {
  if (!host.ranks.empty()) {
    resources_.pipes = std::make_shared<ShmPipes>(host.ranks, host.members, host.self);
  }
  resources_.host = std::move(host);
  resources_.mesh = std::move(mesh);
}

Members BackendFactory::members(std::span<const Rank> ranks) const {
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
  // The first rank of a group may not be a member, so the order of groups can change.
  std::sort(members.groups.begin(), members.groups.end());
  return members;
}

bool BackendFactory::is_cut_off(int channel) const noexcept {
  if (channel <= 0 || channel >= kShmChannels) return false;
  return std::ranges::any_of(groups_, [&](const auto& group) {
    const ShmExtent extent = channel_extent(static_cast<int>(group.size()), channel);
    return group.size() > 1 && extent.offset + extent.bytes > segment_limit_;
  });
}

Result<std::unique_ptr<Backend>> BackendFactory::open(std::span<const Rank> ranks, int channel) {
  Members members = this->members(ranks);
  if (members.self < 0) {
    return Error{.code = Code::Internal, .message = "A process set without this rank was opened"};
  }
  return open_backend(std::move(members), is_cut_off(channel) ? kNoChannel : channel, resources_);
}

}  // namespace farandole

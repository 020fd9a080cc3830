#include "backends/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backends/foreign/foreign.h"
#include "backends/hierarchical/hierarchical.h"
#include "backends/local/local.h"
#include "backends/nccl/communicator.h"
#include "backends/peer/connecting.h"
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

}  // namespace farandole

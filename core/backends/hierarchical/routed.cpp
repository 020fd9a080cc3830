#include "backends/hierarchical/routed.h"

#include <algorithm>
#include <utility>

#include "backends/hierarchical/host_plan.h"
#include "backends/registry.h"

namespace farandole {

RoutedBackend::RoutedBackend(Members members, std::unique_ptr<Backend> local,
                             std::unique_ptr<Backend> network)
    : Backend(std::move(members)), local_(std::move(local)), network_(std::move(network)) {
  local_index_.assign(static_cast<std::size_t>(this->members().size()), -1);
  if (local_ == nullptr) return;
  for (const auto& group : this->members().groups) {
    if (std::find(group.begin(), group.end(), this->members().self) == group.end()) continue;
    for (std::size_t i = 0; i < group.size(); ++i) {
      local_index_[static_cast<std::size_t>(group[i])] = static_cast<int>(i);
    }
  }
}

std::string_view RoutedBackend::path(Kind, std::size_t) const noexcept { return "routed.direct"; }

void RoutedBackend::begin(OperationTag operation) {
  if (local_ != nullptr) local_->begin(operation);
  network_->begin(operation);
}

std::unique_ptr<Operation> RoutedBackend::send(int peer, std::span<const std::byte> data) {
  const int local = local_index_[static_cast<std::size_t>(peer)];
  return local >= 0 ? local_->send(local, data) : network_->send(peer, data);
}

std::unique_ptr<Operation> RoutedBackend::recv(int peer, std::span<std::byte> data) {
  const int local = local_index_[static_cast<std::size_t>(peer)];
  return local >= 0 ? local_->recv(local, data) : network_->recv(peer, data);
}

Result<std::unique_ptr<Backend>> open_inside_host(const Members& members, int channel,
                                                  const Resources& resources) {
  Members together = members_of_host(members);
  if (together.size() == 1) return std::unique_ptr<Backend>();
  return open_backend(std::move(together), channel, resources);
}

Result<std::unique_ptr<Backend>> open_network(Members members, const Resources& resources) {
  members.groups.clear();
  for (int member = 0; member < members.size(); ++member) members.groups.push_back({member});
  return open_backend(std::move(members), kNoChannel, resources);
}

Result<std::unique_ptr<Backend>> open_routed(Members members, int channel,
                                             const Resources& resources) {
  auto local = open_inside_host(members, channel, resources);
  if (!local) return local;
  auto network = open_network(members, resources);
  if (!network) return network;
  return std::unique_ptr<Backend>(
      std::make_unique<RoutedBackend>(std::move(members), *std::move(local), *std::move(network)));
}

}  // namespace farandole

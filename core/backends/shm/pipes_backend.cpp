#include "backends/shm/pipes_backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/failed_operation.h"

namespace farandole {

PipesBackend::PipesBackend(Members members, std::shared_ptr<ShmPipes> pipes,
                           std::vector<int> local_indices)
    : Backend(std::move(members)),
      pipes_(std::move(pipes)),
      local_indices_(std::move(local_indices)) {}

std::string_view PipesBackend::path(Kind kind, std::size_t /*bytes*/) const noexcept {
  return kind == Kind::Broadcast ? "pipes.tree" : "pipes.direct";
}

std::unique_ptr<Operation> PipesBackend::send(int peer, std::span<const std::byte> data) {
  if (peer < 0 || peer >= members().size() || peer == members().self) {
    return failed_operation(Code::InvalidArgument, "No member to send to: " + std::to_string(peer));
  }
  return pipes_->send(local_indices_[static_cast<std::size_t>(peer)], data);
}

std::unique_ptr<Operation> PipesBackend::recv(int peer, std::span<std::byte> data) {
  if (peer < 0 || peer >= members().size() || peer == members().self) {
    return failed_operation(Code::InvalidArgument,
                            "No member to receive from: " + std::to_string(peer));
  }
  return pipes_->recv(local_indices_[static_cast<std::size_t>(peer)], data);
}

std::vector<int> local_indices(const ShmHost& host, std::span<const Rank> ranks) {
  std::vector<int> indices;
  for (const Rank rank : ranks) {
    const auto at = std::find(host.ranks.begin(), host.ranks.end(), rank);
    indices.push_back(static_cast<int>(at - host.ranks.begin()));
  }
  return indices;
}

Result<std::unique_ptr<Backend>> open_pipes(Members members, int /*channel*/,
                                            const Resources& resources) {
  auto indices = local_indices(resources.host, members.ranks);
  return std::unique_ptr<Backend>(
      std::make_unique<PipesBackend>(std::move(members), resources.pipes, std::move(indices)));
}

}  // namespace farandole

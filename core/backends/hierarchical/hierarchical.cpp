#include "backends/hierarchical/hierarchical.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "backends/buffers/spans.h"
#include "backends/hierarchical/hosts.h"
#include "backends/operation.h"
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

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kRounds = 4;  ///< if there is enough for that many

}  // namespace

HierarchicalBackend::HierarchicalBackend(Members members, std::unique_ptr<Backend> local,
                                         std::unique_ptr<Backend> network,
                                         std::unique_ptr<Backend> carriers,
                                         HierarchicalTuning tuning)
    : RoutedBackend(std::move(members), std::move(local), std::move(network)),
      carriers_(std::move(carriers)),
      plan_(HostPlan::of(this->members())),
      tuning_(tuning) {}

bool HierarchicalBackend::small(std::size_t bytes) const noexcept {
  return bytes <= tuning_.small_bytes;
}

HostBackends HierarchicalBackend::shared(std::size_t bytes) const noexcept {
  const auto carriers = static_cast<std::size_t>(plan_.carriers);
  const std::size_t share =
      std::clamp(bytes / (carriers * kRounds), tuning_.least_share_bytes, tuning_.most_share_bytes);
  return {local(), carriers_.get(), plan_, std::max(share / kLine * kLine, kLine)};
}

HostBackends HierarchicalBackend::through(std::size_t bytes) const noexcept {
  HostBackends backends = shared(bytes);
  if (small(bytes)) backends.share_bytes = 0;
  return backends;
}

std::string_view HierarchicalBackend::path(Kind kind, std::size_t bytes) const noexcept {
  switch (kind) {
    case Kind::Allreduce:
    case Kind::Allgather:
    case Kind::Broadcast:
    case Kind::Barrier:
      return small(bytes) ? "hierarchical.small" : "hierarchical.large";
    case Kind::Reducescatter:
      return "hierarchical.large";
    default:
      return RoutedBackend::path(kind, bytes);
  }
}

void HierarchicalBackend::begin(OperationTag operation) {
  RoutedBackend::begin(operation);
  if (carriers_ != nullptr) carriers_->begin(operation);
}

template <>
std::unique_ptr<Operation> HierarchicalBackend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.count * size_of(reduction.dtype);
  return hierarchical_allreduce(through(bytes), pieces,
                                HostReduction::of(association(), reduction));
}

template <>
std::unique_ptr<Operation> HierarchicalBackend::perform(GatherPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  std::size_t longest = 0;  // that a host brings
  for (const auto& group : members().groups) {
    std::size_t bytes = 0;
    for (const int member : group) bytes += total_bytes(plan.out[static_cast<std::size_t>(member)]);
    longest = std::max(longest, bytes);
  }
  return hierarchical_allgather(through(longest), members().groups, std::move(plan), longest);
}

template <>
std::unique_ptr<Operation> HierarchicalBackend::perform(Reducescatter verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  std::size_t bytes = 0;
  for (const ScatterPiece& piece : pieces) bytes += piece.begins.back() * size_of(reduction.dtype);
  return hierarchical_reducescatter(shared(bytes), members(), staging(), pieces,
                                    HostReduction::of(association(), reduction));
}

template <>
std::unique_ptr<Operation> HierarchicalBackend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  if (root < 0 || root >= members().size() || (root == members().self && in.size() != out.size())) {
    return failed_operation(
        Code::InvalidArgument,
        "a broadcast needs a root in the set, with an output as long as its input");
  }
  const auto& groups = members().groups;
  for (std::size_t host = 0; host < groups.size(); ++host) {
    const auto at = std::find(groups[host].begin(), groups[host].end(), root);
    if (at == groups[host].end()) continue;
    return hierarchical_broadcast(through(out.size()), in, out, static_cast<int>(host),
                                  static_cast<int>(at - groups[host].begin()));
  }
  return failed_operation(Code::Internal, "a member on no host");
}

template <>
std::unique_ptr<Operation> HierarchicalBackend::perform(Barrier /*verb*/) {
  return hierarchical_barrier(through(0));
}

std::unique_ptr<Operation> HierarchicalBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

Result<std::unique_ptr<Backend>> open_hierarchical(Members members, int channel,
                                                   const Resources& resources) {
  auto local = open_inside_host(members, channel, resources);
  if (!local) return local;
  auto network = open_network(members, resources);
  if (!network) return network;
  std::unique_ptr<Backend> carriers;
  if (auto among = carriers_of(members)) {
    auto opened = open_network(*std::move(among), resources);
    if (!opened) return opened;
    carriers = *std::move(opened);
  }
  return std::unique_ptr<Backend>(std::make_unique<HierarchicalBackend>(
      std::move(members), *std::move(local), *std::move(network), std::move(carriers)));
}

}  // namespace farandole

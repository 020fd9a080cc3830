#include "backends/hierarchical.h"

#include <algorithm>
#include <utility>

#include "backends/hierarchical_allreduce.h"

namespace rueda {
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

std::size_t HierarchicalBackend::share(std::size_t bytes) const noexcept {
  const auto carriers = static_cast<std::size_t>(plan_.carriers);
  const std::size_t share =
      std::clamp(bytes / (carriers * kRounds), tuning_.least_share_bytes, tuning_.most_share_bytes);
  return std::max(share / kLine * kLine, kLine);
}

std::string_view HierarchicalBackend::path(Kind kind, std::size_t bytes) const noexcept {
  switch (kind) {
    case Kind::Allreduce:
      return small(bytes) ? "hierarchical.small" : "hierarchical.large";
    default:
      return RoutedBackend::path(kind, bytes);
  }
}

std::unique_ptr<Operation> HierarchicalBackend::allreduce(std::span<const Piece> pieces,
                                                          const Reduction& reduction) {
  if (auto refused = refuse(reduction)) return refused;
  const HostBackends through{local(), carriers_.get(), plan_};
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.count * size_of(reduction.dtype);
  return small(bytes) ? hierarchical_small_allreduce(through, pieces, reduction)
                      : hierarchical_large_allreduce(through, pieces, reduction, share(bytes));
}

}  // namespace rueda

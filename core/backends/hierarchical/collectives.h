/// Collectives by host: pipelines of what a host's members do in shared memory and of what carriers
/// do between hosts.
#pragma once

#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/buffers/staging.h"
#include "backends/hierarchical/hosts.h"

namespace farandole {

/// What an operation by hosts consists of. All outlive the operation.
struct HostBackends {
  Backend* local = nullptr;     ///< null if this member is alone on its host
  Backend* carriers = nullptr;  ///< null if this member is no carrier
  HostPlan plan;
  /// Bytes that a carrier carries in a round, a multiple of 64. Nothing: there is one round, and
  /// every carrier carries everything; then hosts on which all are carriers need one meeting.
  std::size_t share_bytes = 0;

  [[nodiscard]] bool small() const noexcept { return share_bytes == 0; }
};

/// A reduction in two.
struct HostReduction {
  Reduction inside;   ///< of what the members of a host bring, to its value
  Reduction between;  ///< of the values of hosts

  static HostReduction of(const Association& association, const Reduction& whole) {
    const double share = association.shares(whole.dtype, whole.op, whole.postscale).host;
    return {{whole.dtype, whole.op, whole.prescale, share},
            {whole.dtype, whole.op, 1.0, whole.postscale / share}};
  }
};

[[nodiscard]] std::unique_ptr<Operation> hierarchical_allreduce(const HostBackends& through,
                                                                std::span<const Piece> pieces,
                                                                const HostReduction& reduction);

/// `staging` outlives the operation.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_reducescatter(
    const HostBackends& through, const Members& members, Staging& staging,
    std::span<const ScatterPiece> pieces, const HostReduction& reduction);

/// `groups`: the hosts, as in Members. `longest`: bytes that the host brings which brings most.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_allgather(
    const HostBackends& through, const std::vector<std::vector<int>>& groups, GatherPlan plan,
    std::size_t longest);

/// From the member of host `host` that has the place `index` there.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_broadcast(const HostBackends& through,
                                                                std::span<const std::byte> in,
                                                                std::span<std::byte> out, int host,
                                                                int index);

[[nodiscard]] std::unique_ptr<Operation> hierarchical_barrier(const HostBackends& through);

}  // namespace farandole

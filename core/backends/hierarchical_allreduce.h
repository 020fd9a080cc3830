/// Allreduce by host: the host's value in shared memory, the tree of hosts among carriers.
#pragma once

#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/host_plan.h"

namespace rueda {

/// What an operation by hosts consists of. All outlive the operation.
struct HostBackends {
  Backend* local = nullptr;     ///< null if this member is alone on its host
  Backend* carriers = nullptr;  ///< null if this member is no carrier
  HostPlan plan;
};

/// Every carrier takes all of it, so that hosts on which all are carriers need one meeting.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_small_allreduce(const HostBackends& through,
                                                                      std::span<const Piece> pieces,
                                                                      const Reduction& reduction);

/// Every carrier takes its share of every round: `share_bytes`, a multiple of 64.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_large_allreduce(const HostBackends& through,
                                                                      std::span<const Piece> pieces,
                                                                      const Reduction& reduction,
                                                                      std::size_t share_bytes);

}  // namespace rueda

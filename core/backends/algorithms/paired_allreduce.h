/// Allreduce from pair to pair: recursive doubling, and recursive halving and doubling. For members
/// that are a host each.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/algorithms/pairing.h"
#include "backends/backend.h"
#include "backends/buffers/staging.h"

namespace farandole {

/// All members have to make the same plan. It never changes the bits.
struct PairedPlan {
  Pairing pairing = Pairing::Halving;
  std::size_t window = 0;     ///< elements that go from pair to pair together
  std::size_t under_way = 4;  ///< windows
};

/// `backend` and `staging` outlive the operation. At least two members. `reduction.op` is one that
/// the kernels know.
[[nodiscard]] std::unique_ptr<Operation> paired_allreduce(Backend& backend, Staging& staging,
                                                          std::span<const Piece> pieces,
                                                          const Reduction& reduction,
                                                          const PairedPlan& plan);

}  // namespace farandole

/// Averages of integers over any backend, exact: what travels are sums that cannot overflow.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "collectives/signature.h"

namespace farandole {

/// Return whether that reduction among so many members is one.
[[nodiscard]] bool averages_integers(const Signature& signature, int members) noexcept;

/// One tensor of a batch: the elements [begin, end) of the average go to `out`.
struct AveragedPiece {
  const std::byte* in = nullptr;  ///< may be `out`, if all elements go there
  std::size_t count = 0;          ///< elements, the same on every member
  std::byte* out = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Averages the pieces. `reduction` is that of reduction_of().
[[nodiscard]] std::unique_ptr<Operation> average_of_integers(Backend& backend,
                                                             std::vector<AveragedPiece> pieces,
                                                             const Reduction& reduction);

}  // namespace farandole

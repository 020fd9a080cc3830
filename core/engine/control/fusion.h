/// Tensor fusion: which ready operations run as one batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/signature.h"

namespace farandole {

/// An operation that all members have submitted.
struct Ready {
  const Signature* signature = nullptr;
  std::size_t bytes = 0;
  std::int32_t process_set = 0;
  std::uint64_t group = 0;  ///< 0: in no group; else the same number for all members of a group
};

struct FusionOptions {
  std::size_t threshold_bytes = std::size_t{128} << 20;  ///< of one batch; 0: no fusion
  bool disable_group_fusion =
      false;  ///< a group fuses with itself only, a single operation not at all
};

/// Returns batches in the order in which they run, as positions in `ready`. The operations of a
/// batch have the same set, kind, device, dtype, op and factors. Their sum is within the threshold,
/// unless the batch is a single operation. An operation that does not fit is skipped, and later
/// ones may still join the batch, as long as the skipped bytes and the batch together are within
/// the threshold. A pure function: the result depends on the arguments alone.
[[nodiscard]] std::vector<std::vector<std::size_t>> plan(std::span<const Ready> ready,
                                                         const FusionOptions& options);

}  // namespace farandole

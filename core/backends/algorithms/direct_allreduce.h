/// Allreduce by direct exchange: correct for any members, built on send() and recv() only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/buffers/staging.h"

namespace farandole {

/// How to cut an allreduce. All members have to make the same plan. It never changes the bits.
struct DirectPlan {
  std::size_t window = 0;  ///< elements exchanged at a time; two windows are under way
  /// False: a window is cut in as many slices as there are members; member q reduces slice q and
  /// sends the result to all (two meetings, the fewest bytes). True: everybody sends the whole
  /// window to everybody and reduces all of it (one meeting; for two members not one byte more).
  bool everyone = false;
};

/// Elements of every member's slice in a window that is cut in slices.
[[nodiscard]] std::size_t direct_slice(std::size_t element_bytes, int members);

/// The plan for `count` elements of `element_bytes` among `members`: staging stays below 8 MiB.
[[nodiscard]] DirectPlan plan_direct(std::size_t count, std::size_t element_bytes, int members);

/// `backend` and `staging` outlive the operation. `reduction.op` is one that the kernels know.
[[nodiscard]] std::unique_ptr<Operation> direct_allreduce(Backend& backend, Staging& staging,
                                                          std::span<const Piece> pieces,
                                                          const Reduction& reduction,
                                                          const DirectPlan& plan);

}  // namespace farandole

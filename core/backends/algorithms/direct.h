/// Collectives by direct exchange: correct for any members, built on send() and recv() only. The
/// defaults of every backend.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/buffers/staging.h"

namespace farandole {

/// Every member sends its contribution to every other member. `backend` and `staging` outlive the
/// operation.
[[nodiscard]] std::unique_ptr<Operation> direct_allgather(Backend& backend, Staging& staging,
                                                          GatherPlan plan);

/// Every member sends every other member its part.
[[nodiscard]] std::unique_ptr<Operation> direct_alltoall(Backend& backend, AlltoallPlan plan);

/// True if a broadcast goes along a chain of members and not down a tree: then no member sends
/// twice.
[[nodiscard]] bool chain_broadcast(std::size_t bytes, int members) noexcept;

/// Down a binomial tree or, if long, a chain, in chunks that are passed on as they arrive.
[[nodiscard]] std::unique_ptr<Operation> tree_broadcast(Backend& backend,
                                                        std::span<const std::byte> in,
                                                        std::span<std::byte> out, int root);

/// Dissemination barrier: in round k, receive from the member 2^k before and send to the one 2^k
/// after.
[[nodiscard]] std::unique_ptr<Operation> dissemination_barrier(Backend& backend);

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

/// `backend` and `staging` outlive the operation. `reduction.op` is one that the kernels know.
/// `window`: elements of every part that are exchanged at a time, the same on all members; two
/// windows are under way. It never changes the bits.
[[nodiscard]] std::unique_ptr<Operation> direct_reducescatter(Backend& backend, Staging& staging,
                                                              std::span<const ScatterPiece> pieces,
                                                              const Reduction& reduction,
                                                              std::size_t window);

}  // namespace farandole

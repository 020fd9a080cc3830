/// Operations of one meeting, where everybody copies in, raises a flag and reads everybody's slot;
/// and reductions of many chunks, pipelined through the slots.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backends/shm/arena.h"

namespace farandole {

[[nodiscard]] std::unique_ptr<Operation> small_allreduce(ShmArena& arena,
                                                         std::span<const Piece> pieces,
                                                         const Reduction& reduction);
/// No contribution is longer than the small slot.
[[nodiscard]] std::unique_ptr<Operation> small_allgather(ShmArena& arena, GatherPlan plan);
/// What is brought, all pieces together, is no longer than the small slot.
[[nodiscard]] std::unique_ptr<Operation> small_reducescatter(ShmArena& arena,
                                                             std::span<const ScatterPiece> pieces,
                                                             const Reduction& reduction);
/// What the longest member brings and its table are no longer than the small slot.
[[nodiscard]] std::unique_ptr<Operation> small_alltoall(ShmArena& arena, AlltoallPlan plan);
[[nodiscard]] std::unique_ptr<Operation> shm_barrier(ShmArena& arena);

/// At least one element.
[[nodiscard]] std::unique_ptr<Operation> large_allreduce(ShmArena& arena,
                                                         std::span<const Piece> pieces,
                                                         const Reduction& reduction);

[[nodiscard]] std::unique_ptr<Operation> large_reducescatter(ShmArena& arena,
                                                             std::span<const ScatterPiece> pieces,
                                                             const Reduction& reduction);

}  // namespace farandole

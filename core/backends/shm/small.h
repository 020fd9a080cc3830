/// Operations of one meeting: everybody copies in, raises a flag, and reads everybody's slot.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backends/shm/arena.h"

namespace rueda {

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

}  // namespace rueda

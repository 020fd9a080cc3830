/// Operations of many chunks, pipelined through the slots.
#pragma once

#include <memory>
#include <span>

#include "backends/shm/arena.h"

namespace rueda {

/// At least one element.
[[nodiscard]] std::unique_ptr<Operation> large_allreduce(ShmArena& arena,
                                                         std::span<const Piece> pieces,
                                                         const Reduction& reduction);

[[nodiscard]] std::unique_ptr<Operation> large_reducescatter(ShmArena& arena,
                                                             std::span<const ScatterPiece> pieces,
                                                             const Reduction& reduction);

}  // namespace rueda

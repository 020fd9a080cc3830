/// Bytes that go through the slots as they are: contributions of any length, and one member's.
#pragma once

#include <memory>
#include <span>

#include "backends/shm/arena.h"

namespace farandole {

[[nodiscard]] std::unique_ptr<Operation> stream_allgather(ShmArena& arena, GatherPlan plan);
[[nodiscard]] std::unique_ptr<Operation> stream_broadcast(ShmArena& arena,
                                                          std::span<const std::byte> in,
                                                          std::span<std::byte> out, int root);

}  // namespace farandole

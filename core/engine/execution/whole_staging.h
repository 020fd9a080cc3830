/// Collectives that read or write tensors themselves, on memory of devices: every tensor is copied
/// to the host as a whole, and its result back.
#pragma once

#include <memory>
#include <span>

#include "backends/staged/staged.h"
#include "collectives/collective.h"

namespace farandole {

/// The tasks give memory for their results, and outlive the operation.
[[nodiscard]] std::unique_ptr<Operation> stage_whole(StagedBackend& backend,
                                                     const Collective& collective,
                                                     std::span<const Task> tasks);

}  // namespace farandole

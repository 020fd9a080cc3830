/// How each collective is cut into chunks that fit a slot.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/device_backend.h"
#include "backends/staged/pipeline.h"

namespace farandole {

// `device`: null on a rank that has none; then nothing lies on a device.

/// For verbs that are cut into pieces of tensors, or parts of members.
template <class Of>
[[nodiscard]] std::unique_ptr<StagedPlan> staged_plan(Backend& host, EngineDevice* device, Of verb);

/// Works on one chunk of a range of bytes, in host memory: what goes in, and where the result goes.
using RunRange = std::function<std::unique_ptr<Operation>(std::span<const std::byte> in,
                                                          std::span<std::byte> out)>;
/// Both ranges are empty or equally long.
[[nodiscard]] std::unique_ptr<StagedPlan> staged_range(EngineDevice* device,
                                                       std::span<const std::byte> in,
                                                       std::span<std::byte> out, RunRange run);

/// All tensors are one chunk, in memory of its own.
[[nodiscard]] std::unique_ptr<StagedPlan> staged_whole(EngineDevice* device,
                                                       std::vector<HostedTensor> tensors,
                                                       HostWork work);

}  // namespace farandole

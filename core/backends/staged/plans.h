/// How each collective is cut into chunks that fit a slot.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backends/device_backend.h"
#include "backends/staged/pipeline.h"
#include "devices/devices.h"

namespace farandole {

/// Host memory of one operation that a device copies from or to; given back when it has done so.
class StagedMemory {
 public:
  /// data() is null if there is no memory. `device`: null takes memory that no device reaches.
  StagedMemory(EngineDevice* device, std::size_t bytes) : device_(device) {
    if (device_ != nullptr) {
      pinned_ = device_->pinned().take(bytes);
    } else {
      plain_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    }
  }
  ~StagedMemory() {
    if (device_ != nullptr) device_->keep(std::move(pinned_));
  }
  StagedMemory(const StagedMemory&) = delete;
  StagedMemory& operator=(const StagedMemory&) = delete;
  [[nodiscard]] std::byte* data() const noexcept {
    return device_ != nullptr ? pinned_.data() : plain_.get();
  }

 private:
  EngineDevice* device_;
  HostBuffer pinned_;
  std::unique_ptr<std::byte[]> plain_;
};

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

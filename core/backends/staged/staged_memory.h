/// Host memory of one operation that a device copies from or to; given back when it has done so.
#pragma once

#include <cstddef>
#include <utility>

#include "devices/devices.h"

namespace farandole {

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

}  // namespace farandole

#include "devices/pinned_memory.h"

#include <utility>

namespace farandole {

namespace {

class PinnedMemory final : public MemorySource {
 public:
  explicit PinnedMemory(std::shared_ptr<DeviceContext> device) noexcept
      : device_(std::move(device)) {}

  [[nodiscard]] std::byte* allocate(std::size_t capacity) override {
    const DeviceContext::Current current(*device_);
    void* memory = nullptr;
    const DriverStatus status = device_->driver().allocate_host(&memory, capacity, kHostPortable);
    return status == kDriverSuccess ? static_cast<std::byte*>(memory) : nullptr;
  }

  void release(std::byte* data, std::size_t /*capacity*/) noexcept override {
    const DeviceContext::Current current(*device_);
    device_->driver().release_host(data);
  }

 private:
  std::shared_ptr<DeviceContext> device_;
};

class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(std::shared_ptr<DeviceContext> device) noexcept
      : device_(std::move(device)) {}

  [[nodiscard]] std::byte* allocate(std::size_t capacity) override {
    const DeviceContext::Current current(*device_);
    DriverAddress address = 0;
    const DriverStatus status = device_->driver().allocate(&address, capacity);
    return status == kDriverSuccess ? reinterpret_cast<std::byte*>(address) : nullptr;
  }

  void release(std::byte* data, std::size_t /*capacity*/) noexcept override {
    const DeviceContext::Current current(*device_);
    device_->driver().release(reinterpret_cast<DriverAddress>(data));
  }

 private:
  std::shared_ptr<DeviceContext> device_;
};

}  // namespace

std::unique_ptr<MemorySource> device_memory(std::shared_ptr<DeviceContext> device) {
  return std::make_unique<DeviceMemory>(std::move(device));
}

std::unique_ptr<MemorySource> pinned_memory(std::shared_ptr<DeviceContext> device) {
  return std::make_unique<PinnedMemory>(std::move(device));
}

}  // namespace farandole

#include "devices/ipc_buffer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "mutex.h"

namespace farandole {

namespace {

DriverAddress as_address(const std::byte* data) noexcept {
  return static_cast<DriverAddress>(reinterpret_cast<std::uintptr_t>(data));
}

/// The buffers that were handed on. They outlive the drivers, so nothing frees them at exit.
struct HandedOn {
  Mutex mutex;
  std::vector<std::unique_ptr<IpcBuffer>> buffers FARANDOLE_GUARDED_BY(mutex);

  static HandedOn& get() {
    static auto& only = *new HandedOn;
    return only;
  }
};

}  // namespace

void IpcBuffer::hand_on(std::unique_ptr<IpcBuffer> buffer) {
  HandedOn& all = HandedOn::get();
  const Lock lock(all.mutex);
  all.buffers.push_back(std::move(buffer));
}

Result<std::unique_ptr<IpcBuffer>> IpcBuffer::make(EngineDevice& device, std::size_t bytes) {
  {
    HandedOn& all = HandedOn::get();
    const Lock lock(all.mutex);
    const auto fits = std::ranges::find_if(all.buffers, [&](const auto& buffer) {
      return buffer->device_ == device.context().index() && buffer->bytes_ == bytes;
    });
    if (fits != all.buffers.end()) {
      auto taken = std::move(*fits);
      all.buffers.erase(fits);
      return taken;
    }
  }
  HostBuffer memory = device.memory().take(bytes);
  if (memory.data() == nullptr) {
    return Error{.code = Code::Backend,
                 .message = "no memory on device " + std::to_string(device.context().index()) +
                            " for a buffer of " + std::to_string(bytes >> 20) + " MiB"};
  }
  const DeviceContext::Current current(device.context());
  DriverIpcHandle handle{};
  const DriverStatus status =
      device.context().driver().ipc_export(&handle, as_address(memory.data()));
  if (status != kDriverSuccess) {
    return device.context().failure(status, "no handle for other processes");
  }
  return std::make_unique<IpcBuffer>(std::move(memory), bytes, device.context().index(), handle);
}

Result<std::unique_ptr<OpenedIpcBuffer>> OpenedIpcBuffer::open(
    std::shared_ptr<DeviceContext> device, const DriverIpcHandle& handle) {
  const DeviceContext::Current current(*device);
  DriverAddress address = 0;
  const DriverStatus status = device->driver().ipc_open(&address, handle, kIpcPeerAccess);
  if (status != kDriverSuccess) return device->failure(status, "cannot open a buffer");
  return std::make_unique<OpenedIpcBuffer>(std::move(device),
                                           reinterpret_cast<const std::byte*>(address));
}

OpenedIpcBuffer::~OpenedIpcBuffer() {
  const DeviceContext::Current current(*device_);
  device_->driver().ipc_close(as_address(data_));
}

}  // namespace farandole

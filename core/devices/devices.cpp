#include "devices/devices.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "devices/device_context.h"

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

std::unique_ptr<MemorySource> device_memory(std::shared_ptr<DeviceContext> device) {
  return std::make_unique<DeviceMemory>(std::move(device));
}

std::unique_ptr<MemorySource> pinned_memory(std::shared_ptr<DeviceContext> device) {
  return std::make_unique<PinnedMemory>(std::move(device));
}

/// Pinned memory is taken from what all programs share, but to pin 256 MiB takes 0.15 s.
constexpr std::size_t kKeptPinnedBytes = std::size_t{512} << 20;
/// Memory of the device belongs to the model.
constexpr std::size_t kKeptDeviceBytes = std::size_t{64} << 20;
/// Of what is delivered after the engine has ended.
constexpr auto kGrace = std::chrono::seconds(5);

}  // namespace

EngineDevice::EngineDevice(std::shared_ptr<DeviceContext> context, std::shared_ptr<Waker> waker)
    : context_(std::move(context)),
      waker_(std::move(waker)),
      pinned_(std::make_shared<HostPool>(kKeptPinnedBytes, pinned_memory(context_))),
      memory_(std::make_shared<HostPool>(kKeptDeviceBytes, device_memory(context_))) {}

Result<std::shared_ptr<EngineDevice>> EngineDevice::open(std::shared_ptr<DeviceContext> context,
                                                         std::shared_ptr<Waker> waker) {
  auto device = std::make_shared<EngineDevice>(context, std::move(waker));
  for (auto* const stream : {&device->to_host_, &device->to_device_, &device->bell_}) {
    auto opened = DeviceStream::open(context);
    if (!opened) return std::move(opened).error();
    *stream = std::move(*opened);
  }
  device->slot_memory_ = device->pinned_->take(kSlots * kSlotBytes);
  std::byte* memory = device->slot_memory_.data();
  if (memory == nullptr) {
    return Error{.code = Code::Backend,
                 .message = "no pinned host memory (" + std::to_string(kSlots * kSlotBytes >> 20) +
                            " MiB) to copy tensors of device " + std::to_string(context->index()) +
                            " through: the limit of the container or of locked memory (ulimit -l) "
                            "may be too low"};
  }
  for (Slot& slot : device->slots_) slot.memory = std::exchange(memory, memory + kSlotBytes);
  return device;
}

/// What the device still copies ends first: it needs the memory. Drivers wait for the whole device
/// when memory is freed, so nothing is freed while a kernel never ends.
EngineDevice::~EngineDevice() {
  if (settle(Clock::now() + kGrace)) {
    pinned_->close();
    memory_->close();
    return;
  }
  leave_behind(context_);
  leave_behind(pinned_);
  leave_behind(memory_);
  leave_behind(std::move(to_host_));
  leave_behind(std::move(to_device_));
  leave_behind(std::move(bell_));
  leave_behind(std::make_shared<HostBuffer>(std::move(slot_memory_)));
  leave_behind(std::make_shared<std::vector<Kept>>(std::move(kept_)));
}

bool EngineDevice::settle(TimePoint deadline) {
  std::vector<std::shared_ptr<const DevicePoint>> points;
  {
    const Lock lock(mutex_);
    if (left_behind_) return false;
    for (const Kept& kept : kept_) points.push_back(kept.until);
  }
  for (const Slot& slot : slots_) {
    if (slot.stored) points.push_back(slot.stored);
  }
  const bool idle = std::ranges::all_of(
      std::array{to_host_.get(), to_device_.get()}, [&](const DeviceStream* stream) {
        return stream == nullptr || done(*context_, stream->get(), deadline);
      });
  if (idle && all_reached(points, deadline)) return true;
  const Lock lock(mutex_);
  left_behind_ = true;
  return false;
}

Result<void> EngineDevice::deliver(HostBuffer from, std::size_t bytes, void* to, void* stream) {
  if (auto copied = context_->copy(to, from.data(), bytes, stream); !copied) return copied;
  keep(std::move(from), stream);
  return {};
}

void EngineDevice::keep(HostBuffer memory) noexcept {
  if (memory.data() == nullptr) return;
  auto loaded = context_->point(to_host());
  if (loaded) static_cast<void>((*loaded)->precede(to_device()));
  keep(std::move(memory), to_device());
}

void EngineDevice::keep(HostBuffer memory, void* stream) noexcept {
  if (memory.data() == nullptr) return;
  auto end = context_->point(stream);
  if (end) {
    keep(std::move(memory), std::move(*end));
  } else {
    static_cast<void>(new HostBuffer(std::move(memory)));  // nobody knows until when it is used
  }
}

void EngineDevice::keep(HostBuffer memory, std::shared_ptr<const DevicePoint> until) {
  collect();
  const Lock lock(mutex_);
  kept_.push_back({.memory = std::move(memory), .until = std::move(until)});
}

void EngineDevice::collect() {
  const Lock lock(mutex_);
  std::erase_if(kept_, [](const Kept& kept) {
    const auto reached = kept.until->reached();
    return reached && *reached;
  });
}

Result<void> EngineDevice::ring_at(const DevicePoint& point) {
  if (auto after = point.precede(bell_->get()); !after) return after;
  const DeviceContext::Current current(*context_);
  auto* const waker = new std::shared_ptr<Waker>(waker_);
  const DriverStatus status = context_->driver().launch_host(
      static_cast<DriverStream>(bell_->get()),
      [](void* argument) {
        auto* const owned = static_cast<std::shared_ptr<Waker>*>(argument);
        (*owned)->ring();
        delete owned;
      },
      waker);
  if (status == kDriverSuccess) return {};
  delete waker;
  return context_->failure(status, "cannot ask to be woken");
}

Devices::Devices(std::string library, std::function<void()> ring)
    : library_(std::move(library)), waker_(std::make_shared<Waker>(std::move(ring))) {}

void Devices::abandon() noexcept {
  auto* const kept = new std::map<int, std::shared_ptr<EngineDevice>>(std::move(open_));
  static_cast<void>(kept);  // its destructors would call the driver
  // Another thread may have held its lock.
  static_cast<void>(new std::shared_ptr<Waker>(std::move(waker_)));
}

std::vector<int> Devices::settle(TimePoint deadline) {
  std::map<int, std::shared_ptr<EngineDevice>> open;
  {
    const Lock lock(mutex_);
    open = open_;
  }
  std::vector<int> late;
  for (const auto& [index, device] : open) {
    if (!device->settle(deadline)) late.push_back(index);
  }
  return late;
}

std::string Devices::describe_late(const std::vector<int>& late, Duration waited) {
  std::string which = late.empty() ? "A device" : "Device";
  for (const int index : late) which += " " + std::to_string(index);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited);
  return which + " has not come to the end of what tensors were exchanged after in " +
         std::to_string(seconds.count()) +
         " s: a kernel before it does not end. Its memory is left behind; end the process";
}

Result<std::shared_ptr<EngineDevice>> Devices::at(Device kind, int index) {
  if (kind != Device::Cuda) {
    return Error{.code = Code::Unsupported,
                 .message = std::string(name_of(kind)) +
                            " tensors are not supported yet; move the tensor to the CPU first"};
  }
  const Lock lock(mutex_);
  if (const auto found = open_.find(index); found != open_.end()) return found->second;
  if (driver_ == nullptr) {
    auto loaded = load_driver(library_);
    if (!loaded) return std::move(loaded).error();
    driver_ = std::move(*loaded);
  }
  auto context = DeviceContext::open(driver_, index);
  if (!context) return std::move(context).error();
  auto device = EngineDevice::open(std::move(*context), waker_);
  if (device) open_.emplace(index, *device);
  return device;
}

}  // namespace farandole

#include "devices/devices.h"

#include <chrono>
#include <utility>

namespace farandole {

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

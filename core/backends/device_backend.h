/// A backend whose tensors lie in memory of devices. Its operations start in the order of streams.
#pragma once

#include <memory>

#include "backends/backend.h"
#include "devices/devices.h"

namespace farandole {

class DeviceBackend : public Backend {
 public:
  using Backend::Backend;

  /// Null on a rank that takes part without a device.
  [[nodiscard]] virtual EngineDevice* device() const noexcept = 0;
  /// The stream that its results are written in. Needs a device.
  [[nodiscard]] virtual void* stream() const noexcept = 0;
  /// What is started from now on comes after that point of a device.
  virtual Result<void> follow(std::shared_ptr<const DevicePoint> point) = 0;
  /// Where everything that was started and is done will have ended. Needs a device.
  [[nodiscard]] Result<std::shared_ptr<DevicePoint>> end() const {
    return device()->context().point(stream());
  }
  /// The world has failed: what is on the device ends as it is. Nothing is started afterwards.
  virtual void abort() noexcept {}
};

}  // namespace farandole

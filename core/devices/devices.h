/// The devices that an engine has met in submissions. A process without them never looks for a
/// driver.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "devices/engine_device.h"
#include "mutex.h"
#include "types.h"

namespace farandole {

class Devices {
 public:
  /// `library`: the driver of CUDA. `ring`: tells the engine that a device has come to a point; any
  /// thread calls it.
  Devices(std::string library, std::function<void()> ring);
  ~Devices() { disconnect(); }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  /// That device, opened when it is asked for first. Fails if nothing here serves its kind or it
  /// cannot be used. Any thread.
  [[nodiscard]] Result<std::shared_ptr<EngineDevice>> at(Device kind, int index);
  /// Nobody is told any more, once it returns.
  void disconnect() {
    if (waker_) waker_->disconnect();
  }
  /// Waits for the devices; the numbers of those that go on beyond the deadline.
  [[nodiscard]] std::vector<int> settle(TimePoint deadline);
  /// Says so, of them or of devices that no number is known of.
  [[nodiscard]] static std::string describe_late(const std::vector<int>& late, Duration waited);
  /// In a forked child: the driver does not work there, and there is no other thread.
  void abandon() noexcept FARANDOLE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  const std::string library_;
  std::shared_ptr<Waker> waker_;
  Mutex mutex_;
  std::shared_ptr<const DeviceDriver> driver_ FARANDOLE_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<EngineDevice>> open_ FARANDOLE_GUARDED_BY(mutex_);  // by index
};

}  // namespace farandole

/// Tells the engine from a thread of the driver that a device has come to a point.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "mutex.h"

namespace farandole {

/// Outlives the engine where work of the device does. Any thread.
class Waker {
 public:
  explicit Waker(std::function<void()> ring) : ring_(std::move(ring)) {}
  void ring() {
    const Lock lock(mutex_);
    if (ring_) ring_();
  }
  /// Nobody is told any more, once it returns.
  void disconnect() {
    const Lock lock(mutex_);
    ring_ = nullptr;
  }

 private:
  Mutex mutex_;  // also held while it rings, which takes no lock
  std::function<void()> ring_ FARANDOLE_GUARDED_BY(mutex_);
};

}  // namespace farandole

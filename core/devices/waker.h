/// Tells the engine from a thread of the driver that a device has come to a point.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace farandole {

/// Outlives the engine where work of the device does. Any thread.
class Waker {
 public:
  explicit Waker(std::function<void()> ring) : ring_(std::move(ring)) {}
  void ring() {
    const std::lock_guard lock(mutex_);
    if (ring_) ring_();
  }
  /// Nobody is told any more, once it returns.
  void disconnect() {
    const std::lock_guard lock(mutex_);
    ring_ = nullptr;
  }

 private:
  std::mutex mutex_;  // guards ring_, and is held while it runs: it takes no lock
  std::function<void()> ring_;
};

}  // namespace farandole

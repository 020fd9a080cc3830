/// An operation's wait for its own device: who wakes the engine, and that a device that computes is
/// late, not stuck.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "backends/operation.h"
#include "devices/devices.h"

namespace farandole {

class DeviceWait {
 public:
  /// The point has not been reached. At first whoever drives the engine polls, as it does before
  /// every sleep. Only then is the driver asked to ring: its rings come 8 to 30 µs after the point
  /// (decision 78), later than most copies end.
  [[nodiscard]] Result<void> watch(EngineDevice& device,
                                   const std::shared_ptr<const DevicePoint>& point) {
    const TimePoint now = Clock::now();
    if (point != point_) {  // a ring for the one before says nothing of this one
      point_ = point;
      since_ = now;
      rung_ = false;
    }
    if (rung_ || now - since_ < kPolled) return {};
    rung_ = true;
    return device.ring_at(*point);
  }
  /// The same, and nothing but the own device is waited for: each slice of time it goes on.
  [[nodiscard]] Result<Step> wait(EngineDevice& device,
                                  const std::shared_ptr<const DevicePoint>& point) {
    if (auto watched = watch(device, point); !watched) return std::move(watched).error();
    const TimePoint now = Clock::now();
    if (!slice_) slice_ = now;
    if (now - *slice_ < kSlice) return Step::Blocked;
    slice_ = now;
    return Step::Advanced;
  }
  /// Others are waited for, too.
  void not_alone() noexcept { slice_.reset(); }
  /// The point has been reached.
  void reset() noexcept {
    point_.reset();
    slice_.reset();
  }
  /// When to ask again; see Operation::due().
  [[nodiscard]] std::optional<TimePoint> due() const {
    std::optional<TimePoint> at;
    if (point_ && !rung_) at = since_ + kPolled;
    if (slice_) at = at ? std::min(*at, *slice_ + kSlice) : *slice_ + kSlice;
    return at;
  }

 private:
  static constexpr auto kPolled = std::chrono::microseconds(20);
  static constexpr auto kSlice = std::chrono::milliseconds(200);  // well below any time limit
  std::shared_ptr<const DevicePoint> point_;                      // null: nothing is waited for
  TimePoint since_{};                                             // it is waited for
  bool rung_ = false;               // the driver rings when it is reached
  std::optional<TimePoint> slice_;  // since the operation has gone on
};

}  // namespace farandole

/// What a device may still use when its owner must end: it stays for ever, and nobody waits for it.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "devices/device_context.h"
#include "types.h"

namespace farandole {

/// Keeps it until the process ends. Any thread.
void leave_behind(std::shared_ptr<void> what);

/// Asks until the answer is yes, or the time is over: then false.
template <typename Question>
[[nodiscard]] bool comes_true(TimePoint deadline, const Question& question) {
  constexpr auto kLongest = std::chrono::milliseconds(5);
  Duration pause = std::chrono::microseconds(50);
  while (!question()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(2 * pause, kLongest);
  }
  return true;
}

/// Waits until the device has come to all of these points, or the time is over: then false. A point
/// that the device has failed at is over.
[[nodiscard]] inline bool all_reached(std::span<const std::shared_ptr<const DevicePoint>> points,
                                      TimePoint deadline) {
  return std::ranges::all_of(points, [&](const auto& point) {
    return comes_true(deadline, [&] {
      const auto reached = point->reached();
      return !reached || *reached;
    });
  });
}

/// The same for all that is in a stream of ours, also where no point could be made.
[[nodiscard]] inline bool done(const DeviceContext& device, void* stream, TimePoint deadline) {
  return comes_true(deadline, [&] { return !device.busy(stream); });
}

}  // namespace farandole

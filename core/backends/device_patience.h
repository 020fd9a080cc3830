/// A rank whose device still computes is late, not stuck: now and then it says that it goes on.
#pragma once

#include <chrono>
#include <optional>

#include "backends/operation.h"

namespace rueda {

class DevicePatience {
 public:
  /// Nothing but the own device is waited for.
  [[nodiscard]] Step wait() {
    const TimePoint now = Clock::now();
    if (!since_) since_ = now;
    if (now - *since_ < kSlice) return Step::Blocked;
    since_ = now;
    return Step::Advanced;
  }
  void reset() noexcept { since_.reset(); }

 private:
  static constexpr auto kSlice = std::chrono::seconds(1);
  std::optional<TimePoint> since_;
};

}  // namespace rueda

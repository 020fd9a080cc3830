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
  /// When to ask again; see Operation::due().
  [[nodiscard]] std::optional<TimePoint> due() const {
    return since_ ? std::optional(*since_ + kSlice) : std::nullopt;
  }
  void reset() noexcept { since_.reset(); }

 private:
  static constexpr auto kSlice = std::chrono::milliseconds(200);  // well below any time limit
  std::optional<TimePoint> since_;
};

}  // namespace rueda

/// How long to wait awake before going to sleep.
#pragma once

#include "types.h"

namespace rueda {

/// A few pauses, then sched_yield while it costs little. With more ranks than cores a yield lets
/// the rank run that is awaited, and time that others used is not waste: only what this thread
/// burns itself counts, 50 µs at most. But where a yield takes long, somebody computes on this
/// core, and the scheduler serves a sleeper that is woken sooner than one that yields.
class Patience {
 public:
  /// `pauses`: how often to look before the first yield.
  explicit Patience(int pauses) noexcept : pauses_(pauses) {}

  /// Waits a moment. False: it is time to sleep.
  [[nodiscard]] bool wait() noexcept;
  /// Something moved: begin anew.
  void reset() noexcept {
    paused_ = 0;
    burnt_ = Duration::zero();
    yielding_ = false;
  }

 private:
  int pauses_;
  int paused_ = 0;
  bool yielding_ = false;
  TimePoint since_{};  // of the last look at the clock, while yielding
  Duration burnt_ = Duration::zero();
};

}  // namespace rueda

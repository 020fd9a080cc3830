/// How long a waiting thread spins before it sleeps.
#pragma once

#include "types.h"

namespace rueda {

/// Spins by a few pauses, then by sched_yield for at most 50 µs. With more ranks than cores, a
/// yield lets the awaited rank run. Time that other threads use during a yield is not wasted, so it
/// does not count against the 50 µs. A yield that takes long shows that another thread computes on
/// this core. Then it is better to sleep, as the scheduler runs a woken sleeper sooner than a
/// thread that yields.
class SpinWait {
 public:
  /// `pauses`: how many pauses come before the first yield.
  explicit SpinWait(int pauses) noexcept : pauses_(pauses) {}

  /// Waits a moment. False: it is time to sleep, as it was if wait() has said so before.
  [[nodiscard]] bool wait() noexcept;
  /// Another thread has run during a yield: it wants this core, so pauses are time that it lacks.
  [[nodiscard]] bool shared() const noexcept { return shared_; }
  /// Starts anew, because something moved.
  void reset() noexcept {
    paused_ = 0;
    burnt_ = Duration::zero();
    yielding_ = false;
    over_ = false;
  }

 private:
  int pauses_;
  int paused_ = 0;
  bool yielding_ = false;
  bool shared_ = false;
  bool over_ = false;
  TimePoint since_{};  // of the last look at the clock, while yielding
  Duration burnt_ = Duration::zero();
};

}  // namespace rueda

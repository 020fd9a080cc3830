/// How long a waiting thread spins before it sleeps.
#pragma once

#include <optional>

#include "types.h"

namespace farandole {

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
  /// Whether another thread has run during a yield: it wants this core, so pauses are time that it
  /// lacks. Nothing: there was no yield to tell.
  [[nodiscard]] std::optional<bool> shared() const noexcept { return shared_; }
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
  std::optional<bool> shared_;
  bool over_ = false;
  TimePoint since_{};  // of the last look at the clock, while yielding
  Duration burnt_ = Duration::zero();
};

/// How many pauses come before the first yield, for one wait after another. Fewer and fewer while
/// other threads run during the yields, as with more ranks than cores, under a limit of a cgroup or
/// on a busy machine: what this thread waits for may need its core. As many as ever when a yield
/// has met nobody. A wait that ends without a yield tells nothing: where ranks share cores, the one
/// that comes last finds all others there.
class Pauses {
 public:
  static constexpr int kMost = 64;  // a few microseconds

  [[nodiscard]] int count() const noexcept { return count_; }
  /// `shared`: of the SpinWait that ended the wait.
  void learn(std::optional<bool> shared) noexcept {
    if (shared) count_ = *shared ? count_ / 2 : kMost;
  }

 private:
  int count_ = kMost;
};

}  // namespace farandole

#include "engine/base/spin_wait.h"

#include <sched.h>

#include <algorithm>

namespace farandole {

namespace {

using std::chrono::microseconds;

constexpr auto kBurn = microseconds(50);
/// A yield that takes longer has let another thread run. So much of it counts as this thread's own
/// time.
constexpr auto kOwnShare = microseconds(1);
/// A yield that takes longer has met a thread that computes.
constexpr auto kHogged = microseconds(200);

/// Some tens of nanoseconds, in which the other hardware thread of the core runs faster.
void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool SpinWait::wait() noexcept {
  if (over_) return false;
  if (paused_ < pauses_) {
    ++paused_;
    pause();
    return true;
  }
  if (!yielding_) {
    yielding_ = true;
    since_ = Clock::now();
  }
  ::sched_yield();
  const auto now = Clock::now();
  const auto took = now - since_;  // includes what the calling code did between two waits
  since_ = now;
  burnt_ += std::min<Duration>(took, kOwnShare);
  shared_ = shared_.value_or(false) || took > kOwnShare;
  over_ = burnt_ >= kBurn || took >= kHogged;
  return !over_;
}

}  // namespace farandole

#include "engine/base/patience.h"

#include <sched.h>

#include <algorithm>

#include "engine/base/pause.h"

namespace rueda {

namespace {

using std::chrono::microseconds;

constexpr auto kBurn = microseconds(50);
/// A yield that takes longer has let somebody else run; this much of it is charged.
constexpr auto kOwnShare = microseconds(1);
/// A yield that takes longer has met somebody who computes.
constexpr auto kHogged = microseconds(200);

}  // namespace

bool Patience::wait() noexcept {
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
  const auto took = now - since_;  // with what the caller did in between
  since_ = now;
  burnt_ += std::min<Duration>(took, kOwnShare);
  return burnt_ < kBurn && took < kHogged;
}

}  // namespace rueda

#include "kernels/peer_copies.h"

#include <algorithm>
#include <chrono>

namespace farandole {

FasterWay::Way FasterWay::next() noexcept {
  // The first turn may touch its memory for the first time, so the second one is compared.
  if (costs_[taken_] == 0.0F || --until_trial_ != 0) return taken_;
  until_trial_ = between_trials_;
  if (taken_ == Second) return First;
  between_trials_ = std::min(4 * between_trials_, kMostBetweenTrials);
  return Second;
}

void FasterWay::took(Way way, float cost) noexcept {
  if (way != taken_) {  // a trial
    costs_[way] = costs_[way] == 0.0F || taken_ == Second ? cost : std::min(costs_[way], cost);
    decide();
    return;
  }
  shortest_ = compared_ == 0 ? cost : std::min(shortest_, cost);
  if (++compared_ < kCompared) return;
  compared_ = 0;
  if (way == First && costs_[First] != 0.0F && shortest_ > kGrown * costs_[First]) {
    until_trial_ = 1;
    between_trials_ = kBetweenTrials;
  }
  costs_[way] = shortest_;
  decide();
}

void FasterWay::decide() noexcept {
  if (costs_[First] == 0.0F || costs_[Second] == 0.0F) return;
  const float ratio = costs_[First] / costs_[Second];
  const Way better = taken_ == First ? (ratio > kMuchFaster ? Second : First)
                                     : (ratio < kStillFaster ? First : Second);
  if (better == taken_) return;
  taken_ = better;
  compared_ = 0;
  until_trial_ = between_trials_ = kBetweenTrials;
}

void PeerCopies::copy(std::byte* out, const std::byte* in, std::size_t bytes,
                      Copy ordinary) noexcept {
  using Clock = std::chrono::steady_clock;
  if (bytes < kTimed) {
    ordinary(out, in, bytes);
    return;
  }
  const FasterWay::Way way = way_.next();
  const auto begin = Clock::now();
  if (way == FasterWay::First) {
    ordinary(out, in, bytes);
  } else {
    copy_streaming(out, in, bytes);
  }
  const std::chrono::duration<float, std::nano> taken = Clock::now() - begin;
  way_.took(way, taken.count() / static_cast<float>(bytes));
}

}  // namespace farandole

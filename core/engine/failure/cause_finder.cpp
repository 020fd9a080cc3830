#include "engine/failure/cause_finder.h"

#include <utility>

namespace farandole {

namespace {

using std::chrono::milliseconds;

/// How long the rank that decides waits for stronger evidence.
constexpr Duration patience(Evidence evidence) noexcept {
  switch (evidence) {
    case Evidence::Certain:
      return Duration::zero();
    case Evidence::Control:
      // A rank sends a cause before it closes a control connection, so this process has ended. It
      // may have ended because of another one that ended just before.
      return milliseconds(50);
    case Evidence::Data:
      return milliseconds(100);
  }
  return Duration::zero();
}

/// How long other ranks wait for the decision of rank 0, if nobody may be silent.
constexpr auto kDecisionGrace = milliseconds(200);

}  // namespace

bool CauseFinder::hear(Error error, Evidence evidence, bool has_parent, TimePoint now) {
  if (best_ && evidence <= best_->evidence) return false;
  if (!best_) since_ = now;
  has_parent_ = has_parent;
  best_ = Finding{.error = std::move(error), .evidence = evidence};
  return true;
}

TimePoint CauseFinder::deadline() const noexcept {
  if (!has_parent_) return since_ + patience(best_->evidence);
  const bool certain = best_->evidence == Evidence::Certain;
  return since_ + kDecisionGrace + (certain ? Duration::zero() : silence_);
}

}  // namespace farandole

#include "engine/failure/inquest.h"

#include <utility>

namespace rueda {

namespace {

using std::chrono::milliseconds;

/// How long a rank that judges waits for better evidence.
constexpr Duration patience(Evidence evidence) noexcept {
  switch (evidence) {
    case Evidence::Certain:
      return Duration::zero();
    case Evidence::Control:
      // Nobody ends a control connection without a word, so its process has ended. Only if another
      // one ended just before, that is the cause.
      return milliseconds(50);
    case Evidence::Data:
      return milliseconds(100);
  }
  return Duration::zero();
}

/// How long to wait for the verdict of the root.
constexpr auto kVerdictGrace = milliseconds(200);

}  // namespace

bool Inquest::hear(Error error, Evidence evidence, bool way_up, TimePoint now) {
  if (best_ && evidence <= best_->evidence) return false;
  if (!best_) since_ = now;
  way_up_ = way_up;
  best_ = Finding{.error = std::move(error), .evidence = evidence};
  return true;
}

TimePoint Inquest::deadline() const noexcept {
  return since_ + (way_up_ ? Duration(kVerdictGrace) : patience(best_->evidence));
}

}  // namespace rueda

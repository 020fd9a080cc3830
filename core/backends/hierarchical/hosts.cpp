#include "backends/hierarchical/hosts.h"

#include <algorithm>
#include <utility>

namespace farandole {

Result<Step> HostRounds::step() {
  if (finished_ == rounds_) return Step::Done;
  auto inside = step_inside();
  if (!inside) return std::move(inside).error();
  auto across = step_across();
  if (!across) return std::move(across).error();
  if (finished_ == rounds_) return Step::Done;
  return *inside || *across ? Step::Advanced : Step::Blocked;
}

Result<bool> HostRounds::step_inside() {
  if (!inside_) {
    preparing_ = prepared_ < rounds_ && prepared_ < finished_ + kAhead;
    if (!preparing_ && finished_ == crossed_) return false;
    inside_ = preparing_ ? before(prepared_) : after(finished_);
  }
  bool moved = true;
  if (inside_) {
    auto step = inside_->step();
    if (!step) return std::move(step).error();
    moved = *step != Step::Blocked;
    if (*step != Step::Done) return moved;
    inside_.reset();
  }
  if (preparing_) {
    ++prepared_;
  } else {
    finish(finished_++);
  }
  return moved;
}

Result<bool> HostRounds::step_across() {
  if (!across_) {
    if (crossed_ == prepared_) return false;
    across_ = across(crossed_);
  }
  if (across_) {
    auto step = across_->step();
    if (!step) return std::move(step).error();
    if (*step != Step::Done) return *step != Step::Blocked;
    across_.reset();
  }
  ++crossed_;
  return true;
}

std::vector<Rank> HostRounds::waiting_for() const {
  std::vector<Rank> ranks = across_ ? across_->waiting_for() : std::vector<Rank>();
  if (inside_) {
    const std::vector<Rank> more = inside_->waiting_for();
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace farandole

#include "engine/control/negotiation.h"

namespace rueda {

bool Negotiation::moved() {
  // What has been dispatched comes to its end without those who are done with it; only what is
  // still to be agreed on may need them.
  if (bypass_ != nullptr && negotiator_->resting() && !failed_) bypass_->reopen();
  const auto tick = negotiator_->next_tick();
  next_tick_ns_.store(tick ? tick->time_since_epoch().count() : kNever, std::memory_order_relaxed);
  if (effects_.empty()) return false;
  alert();
  return true;
}

bool Negotiation::submitted() {
  if (bypass_ != nullptr) bypass_->close();
  return moved();
}

void Negotiation::take(Effects& effects) {
  pending_.store(false, std::memory_order_relaxed);
  effects.clear();
  std::swap(effects, effects_);
}

std::optional<TimePoint> Negotiation::next_tick() const noexcept {
  const std::int64_t tick = next_tick_ns_.load(std::memory_order_relaxed);
  if (tick == kNever) return std::nullopt;
  return TimePoint(Duration(tick));
}

}  // namespace rueda

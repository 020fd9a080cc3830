#include "engine/control/negotiation.h"

#include "engine/control/world.h"

namespace farandole {

Result<void> Negotiation::open(const std::vector<std::vector<Rank>>& groups,
                               const std::vector<std::string>& hosts, Rank self,
                               const NegotiatorOptions& options, Timeline* timeline) {
  const EngineLock::Guard lock(mutex_);
  negotiator_ = std::make_unique<Negotiator>(groups, hosts, self, options, timeline);
  if (negotiator_->process_sets().size() == options.process_sets.size() + 1) return {};
  World world(groups, hosts, self);
  for (const auto& ranks : options.process_sets) {
    if (auto fine = world.check_addition(ranks); !fine) return fine;
    world.add_set(ranks);
  }
  return {};
}

std::optional<Error> Negotiation::failure() const {
  const EngineLock::Guard lock(mutex_);
  if (failed_) return failed_->code == Code::Shutdown ? std::nullopt : failed_;
  return negotiator_ ? negotiator_->departure() : std::nullopt;
}

std::map<std::int32_t, std::vector<Rank>> Negotiation::process_sets() const {
  const EngineLock::Guard lock(mutex_);
  return negotiator_ ? negotiator_->process_sets() : decltype(process_sets()){};
}

std::vector<SetChange> Negotiation::sets() const {
  const EngineLock::Guard lock(mutex_);
  std::vector<SetChange> all;
  for (auto& [id, ranks] : negotiator_->process_sets()) {
    const ProcessSet& set = *negotiator_->process_set(id);
    all.push_back({.id = id,
                   .generation = set.generation,
                   .channel = set.channel,
                   .added = true,
                   .ranks = std::move(ranks)});
  }
  return all;
}

bool Negotiation::moved() {
  // A rank without submissions in flight may propose again. Ranks that still run a dispatched
  // operation do not need it: only negotiation would.
  if (fast_path_ != nullptr && negotiator_->resting() && !failed_) fast_path_->reopen();
  const auto tick = negotiator_->next_tick();
  next_tick_ns_.store(tick ? tick->time_since_epoch().count() : kNever, std::memory_order_relaxed);
  if (effects_.empty()) return false;
  alert();
  return true;
}

bool Negotiation::submitted() {
  if (fast_path_ != nullptr) fast_path_->close();
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

}  // namespace farandole

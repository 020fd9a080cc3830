/// What became of submissions: asking, waiting, forgetting. Any thread.

#include "engine/engine.h"

namespace rueda {

std::shared_ptr<Work> Engine::find(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = works_.find(handle);
  return found == works_.end() ? nullptr : found->second;
}

std::shared_ptr<Work> Engine::take(Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = works_.find(handle);
  if (found == works_.end()) return nullptr;
  auto work = std::move(found->second);
  works_.erase(found);
  return work;
}

std::vector<std::shared_ptr<Work>> Engine::abandon_all() {
  std::vector<std::shared_ptr<Work>> works;
  const std::lock_guard lock(mutex_);
  works.reserve(works_.size());
  for (auto& [handle, work] : works_) works.push_back(std::move(work));
  works_.clear();
  return works;
}

void Engine::want_all() { press(&Negotiator::want_all); }

void Engine::press(void (Negotiator::*want)(TimePoint, Effects&)) {
  if (in_child()) return;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    (*negotiator_.*want)(Clock::now(), effects_);
    rest();
    note_tick();
    if (effects_.empty()) return;
    effects_pending_.store(true, std::memory_order_seq_cst);
  }
  if (options_.size > 1) progress_->alert_holder();  // whoever wants goes on to drive
}

std::optional<bool> Engine::poll(Handle handle) {
  if (in_child()) return false;  // a thread of the parent may have held the lock
  const auto work = find(handle);
  if (!work) return std::nullopt;
  // A world of one, or the rank that comes last, would often be done before anybody can look;
  // scripts and tests rely on operations being asynchronous, so the first look says no.
  const bool first = !work->polled.exchange(true);
  if (work->done.load(std::memory_order_acquire)) return !first;
  if (first && options_.size == 1) return false;
  press(&Negotiator::demand);  // who only looks is not blocked: a deadlock must not be claimed
  progress_->poke();
  return !first && work->done.load(std::memory_order_acquire);
}

std::optional<bool> Engine::wait(Handle handle, TimePoint deadline) {
  if (in_child()) return false;  // a thread of the parent may have held the lock
  const auto work = find(handle);
  if (!work) return std::nullopt;
  if (work->done.load(std::memory_order_acquire)) return true;
  bool pending = false;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) {
      for (const std::uint64_t ticket : work->tickets) {
        negotiator_->want(ticket, Clock::now(), effects_);
      }
      rest();
      note_tick();
      pending = !effects_.empty();
      if (pending) effects_pending_.store(true, std::memory_order_seq_cst);
    }
  }
  if (pending && options_.size > 1) progress_->alert_holder();
  return progress_->until([&] { return work->done.load(std::memory_order_acquire); }, deadline);
}

}  // namespace rueda

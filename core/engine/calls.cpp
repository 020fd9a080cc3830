#include "engine/calls.h"

#include <algorithm>

namespace farandole {

namespace {

bool is_done(const Work& work) { return work.done.load(std::memory_order_acquire); }

/// Also on the devices. What has failed there has ended: whoever waits for it hears of that.
bool ended(const Work& work) {
  return std::ranges::all_of(work.ends, [](const DeviceEnd& end) {
    const auto reached = end.point->reached();
    return !reached || *reached;
  });
}

}  // namespace

Result<Handle> Calls::submit(Submission& submission) {
  switch (submission.mode) {
    case Mode::Blocking:
      return blocking(submission);
    case Mode::Callback:
      return with_callback(submission);
    case Mode::Asynchronous:
    case Mode::Awaited:
      break;
  }
  return take_regular_way(submission);
}

/// Stays for a moment. 0: done; else the handle of an operation that is under way.
Result<Handle> Calls::blocking(Submission& submission) {
  if (progress_->take()) {
    auto handle = drive(submission);
    progress_->give_back();
    return handle;
  }
  auto handle = take_regular_way(submission);
  if (!handle) return handle;
  const auto work = find(*handle);
  const bool done = progress_->until([&] { return is_done(*work); }, Clock::now() + kBlink);
  return done ? forget(*work) : *handle;
}

Result<Handle> Calls::drive(Submission& submission) {
  const bool proposed =
      fast_path_ != nullptr && !fast_path_->idle() && fast_path_->propose(submission);
  auto handle = proposed ? fast_path_->see_through(true) : take_regular_way(submission);
  if (!handle || *handle == 0) return handle;
  const auto work = find(*handle);
  const bool done = progress_->until_held([&] { return is_done(*work); }, Clock::now() + kBlink);
  return done ? forget(*work) : *handle;
}

/// Stays only where nothing else is under way, as the other ranks may be there already.
Result<Handle> Calls::with_callback(Submission& submission) {
  const bool stays = fast_path_ != nullptr && !fast_path_->idle() && handles_.unfinished() == 0;
  if (!stays || !progress_->take()) return take_regular_way(submission);
  const bool proposed = fast_path_->propose(submission);
  auto handle = proposed ? fast_path_->see_through(false) : take_regular_way(submission);
  progress_->give_back();
  return handle;
}

Result<Handle> Calls::take_regular_way(Submission& submission) {
  Result<Handle> handle = Handle{0};
  {
    const EngineLock::Guard lock(negotiation_.mutex());
    handle = submissions_.submit(submission);
  }
  if (!handle) return handle;
  if (peers_.size() > 1) {
    alert(is_awaited(submission));
  } else if (submission.mode == Mode::Callback) {  // no engine thread runs what nobody waits for
    mark_all_waited();
    progress_->poke();
  }
  return handle;
}

/// Tells whoever drives that something was submitted. `comes`: the calling thread will drive at
/// once.
void Calls::alert(bool comes) {
  if (comes) {
    progress_->alert_holder();
  } else if (negotiation_.pending()) {
    progress_->alert();
  } else if (const auto tick = negotiation_.next_tick()) {
    progress_->due(*tick);
  }
}

void Calls::tell(void (Negotiator::*call)(TimePoint, Effects&)) {
  {
    const EngineLock::Guard lock(negotiation_.mutex());
    if (negotiation_.failed()) return;
    (*negotiation_.negotiator().*call)(Clock::now(), negotiation_.effects());
    if (!negotiation_.moved()) return;
  }
  if (peers_.size() > 1) progress_->alert_holder();  // whoever wants goes on to drive
}

std::optional<bool> Calls::poll(Handle handle) {
  const auto work = find(handle);
  if (!work) return std::nullopt;
  // A world of one, or the rank that comes last, would often be done before anybody can look;
  // scripts and tests rely on operations being asynchronous, so the first look says no.
  const bool first = !work->polled.exchange(true);
  if (is_done(*work)) return !first && ended(*work);
  if (first && peers_.size() == 1) return false;
  tell(&Negotiator::flush_held);  // who only looks is not blocked: a deadlock must not be claimed
  progress_->poke();
  return !first && is_done(*work) && ended(*work);
}

std::optional<bool> Calls::wait(Handle handle, TimePoint deadline) {
  const auto work = find(handle);
  if (!work) return std::nullopt;
  if (is_done(*work)) return true;
  bool pending = false;
  {
    const EngineLock::Guard lock(negotiation_.mutex());
    if (!negotiation_.failed()) {
      for (const std::uint64_t ticket : work->tickets) {
        negotiation_.negotiator()->mark_waited(ticket, Clock::now(), negotiation_.effects());
      }
      pending = negotiation_.moved();
    }
  }
  if (pending && peers_.size() > 1) progress_->alert_holder();
  return progress_->until([&] { return is_done(*work); }, deadline);
}

std::optional<bool> Calls::watch(Handle handle, TimePoint deadline) {
  const auto work = find(handle);
  if (!work) return std::nullopt;
  tell(&Negotiator::flush_held);
  return progress_->until([&] { return is_done(*work); }, deadline);
}

void Calls::leave(Handle handle) {
  const auto work = find(handle);
  if (!work) return;
  {
    const EngineLock::Guard lock(negotiation_.mutex());
    if (negotiation_.failed()) return;
    for (const std::uint64_t ticket : work->tickets) {
      negotiation_.negotiator()->mark_left(ticket, Clock::now(), negotiation_.effects());
    }
    if (!negotiation_.moved()) return;
  }
  if (peers_.size() > 1) progress_->alert();
}

/// Of what is done. 0: there was nothing to take(), and the handle is not known any more.
Handle Calls::forget(const Work& work) {
  const bool plain = !work.error && !work.has_result() && !work.ends_on_host();
  return plain && take(work.handle) != nullptr ? Handle{0} : work.handle;
}

std::shared_ptr<Work> Calls::find(Handle handle) const {
  const EngineLock::Guard lock(negotiation_.mutex());
  return handles_.find(handle);
}

std::shared_ptr<Work> Calls::take(Handle handle) {
  const EngineLock::Guard lock(negotiation_.mutex());
  return handles_.take(handle);
}

std::vector<std::shared_ptr<Work>> Calls::abandon_all() {
  const EngineLock::Guard lock(negotiation_.mutex());
  return handles_.take_all();
}

}  // namespace farandole

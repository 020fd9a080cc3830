/// What the holder of the baton does.

#include "engine/engine.h"

#include <algorithm>

#include "engine/fast_path/call_frame.h"

namespace rueda {

bool Engine::busy() const {
  return unfinished_.load(std::memory_order_relaxed) != 0 || !dispatcher_->idle() ||
         effects_pending_.load(std::memory_order_relaxed) || detector_->open() ||
         (peers_.offers() != nullptr && (peers_.offers()->open() || peers_.offers()->sending())) ||
         (phase_.has_ended() && !phase_.has_closed());
}

std::optional<TimePoint> Engine::next_deadline() const {
  if (phase_.has_failed()) return std::nullopt;  // advance() does nothing
  auto at = TimePoint::max();
  if (const auto tick = next_tick_ns_.load(std::memory_order_relaxed); tick != kNever) {
    at = std::min(at, TimePoint(Duration(tick)));
  }
  if (const auto due = dispatcher_->deadline()) at = std::min(at, *due);
  if (const auto due = detector_->next()) at = std::min(at, *due);
  if (offered_.ask_at != TimePoint{}) at = std::min(at, offered_.ask_at);
  if (at == TimePoint::max()) return std::nullopt;
  return at;
}

/// Nothing runs, and nothing can come that has its place before what was heard last.
bool Engine::at_rest() const {
  return dispatcher_->idle() && (peers_.offers() == nullptr || !peers_.offers()->open());
}

bool Engine::advance() {
  if (phase_.has_failed()) return false;
  const auto now = Clock::now();
  bool moved = receive(now);
  // Dispatches that came before the cause must not start: their entries have failed already.
  if (phase_.has_failed()) return true;
  detector_->look(now);
  if (nanoseconds(now) >= next_tick_ns_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    negotiator_->tick(now, effects_);
    rest();
    note_tick();
    if (!effects_.empty()) effects_pending_.store(true, std::memory_order_relaxed);
  }
  if (peers_.offers() != nullptr) moved |= step_offer(now);
  moved |= apply_effects(now);
  if (detector_->open()) {
    moved |= detector_->judge(now);
  } else {
    moved |= step_batch(now);
  }
  return moved;
}

bool Engine::receive(TimePoint now) {
  bool moved = false;
  for (auto& neighbour : peers_.neighbours()) {
    ControlChannel& channel = *neighbour.channel;
    if (!channel.ready()) continue;
    for (;;) {
      auto message = channel.receive();
      if (!message) {
        detector_->lose(neighbour.rank, std::move(message).error(), Evidence::Control, now);
        break;
      }
      if (!*message) break;
      if (detector_->heard(neighbour.rank, **message, now)) continue;
      if (!moved && timeline_.marks_cycles()) timeline_.cycle(now);
      moved = true;
      if (detector_->take(neighbour.rank, **message, now)) {
        if (phase_.has_failed()) return true;
        continue;
      }
      if (decode_call(**message)) {
        called(**message, neighbour.rank, now);
        continue;
      }
      Result<void> fine;
      {
        const std::lock_guard lock(mutex_);
        fine = negotiator_->receive(neighbour.rank, **message, now, effects_);
        rest();
        note_tick();
        if (!effects_.empty()) effects_pending_.store(true, std::memory_order_relaxed);
      }
      if (!fine) {
        detector_->lose(neighbour.rank, std::move(fine).error(), Evidence::Control, now);
        break;
      }
    }
    if (channel.congested()) {
      if (auto flushed = channel.flush(); !flushed) {
        detector_->lose(neighbour.rank, std::move(flushed).error(), Evidence::Control, now);
      }
    }
  }
  return moved;
}

bool Engine::apply_effects(TimePoint now) {
  if (!effects_pending_.load(std::memory_order_seq_cst)) return false;
  if (timeline_.marks_cycles()) timeline_.cycle(now);
  {
    const std::lock_guard lock(mutex_);
    effects_pending_.store(false, std::memory_order_relaxed);
    applying_.clear();
    std::swap(applying_, effects_);
    hold(applying_, now);
  }
  for (const auto& send : applying_.sends) {
    ControlChannel* channel = peers_.channel(send.to);
    const auto bytes =
        std::span<const std::byte>(applying_.bytes).subspan(send.begin, send.end - send.begin);
    auto sent = channel->post(bytes);
    if (!sent) detector_->lose(send.to, std::move(sent).error(), Evidence::Control, now);
  }
  for (const auto& text : applying_.warnings) log_.write(LogLevel::Warning, text);
  for (const auto& text : applying_.errors) log_.write(LogLevel::Error, text);
  for (Failure& failure : applying_.failures) {
    std::vector<std::unique_ptr<Entry>> entries;
    {
      const std::lock_guard lock(mutex_);
      if (failure.ticket == join_ticket_) join_ticket_ = 0;
      auto node = entries_.extract(failure.ticket);
      if (node.empty()) continue;
      entries.push_back(std::move(node.mapped()));
    }
    if (failure.error.tensor.empty()) failure.error.tensor = entries.front()->name;
    finish(std::move(entries), failure.error);
  }
  if (applying_.shutdown_by) {
    phase_.ended.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (Offers* offers = peers_.offers()) offers->close();
  }
  if (applying_.closed) phase_.closed.store(true, std::memory_order_seq_cst);
  if (applying_.fatal) {
    if (applying_.fatal->code == Code::Shutdown) {
      abort(*applying_.fatal, std::nullopt);  // the end of this engine, not of the world
    } else {
      detector_->accuse(*applying_.fatal, Evidence::Certain, now);
    }
  }
  if (phase_.has_ended() && !phase_.acknowledged.load() && at_rest()) {
    phase_.acknowledged.store(true);
    const std::lock_guard lock(mutex_);
    negotiator_->acknowledge_shutdown(now, effects_);
    effects_pending_.store(!effects_.empty(), std::memory_order_relaxed);
  }
  if (phase_.has_closed()) progress_->completed();
  return true;
}

/// Called with mutex_ held.
void Engine::enqueue(Dispatch& dispatch) {
  Dispatcher::Batch batch;
  batch.process_set = dispatch.process_set;
  batch.position = {.stream = Position::Stream::Dispatches, .number = dispatch.number};
  if (dispatch.change) {
    batch.value = dispatch.change->id;
    if (!dispatch.change->added) members_.erase(dispatch.change->generation);
    batch.change = std::move(dispatch.change);
  }
  for (DispatchEntry& entry : dispatch.entries) {
    std::unique_ptr<Entry> mine;
    if (auto node = entries_.extract(entry.ticket); !node.empty()) mine = std::move(node.mapped());
    if (entry.track != 0) {
      batch.tracks.resize(batch.entries.size() + 1, 0);
      batch.tracks.back() = entry.track;
    }
    // The own signature, not the agreed one: rows of an allgather differ between ranks.
    batch.signatures.push_back(mine ? mine->signature : std::move(entry.signature));
    batch.entries.push_back(std::move(mine));
  }
  if (!batch.tracks.empty()) batch.tracks.resize(batch.entries.size(), 0);
  dispatcher_->enqueue(std::move(batch));
}

/// Called with mutex_ held. Nothing is to be run, but all that came before must be over.
void Engine::enqueue_joined(Rank last) {
  Dispatcher::Batch batch;
  batch.value = last;
  auto node = entries_.extract(std::exchange(join_ticket_, 0));
  if (!node.empty()) batch.entries.push_back(std::move(node.mapped()));
  dispatcher_->enqueue(std::move(batch));
}

bool Engine::step_batch(TimePoint now) {
  if (dispatcher_->idle()) return false;
  auto step = dispatcher_->step(now);
  if (!step) {
    Error error = std::move(step).error();
    if (error.code == Code::PeerLost) {
      const Rank peer = error.peer;
      detector_->lose(peer, std::move(error), Evidence::Data, now);
    } else {
      tell_whose(error, options_.rank, peers_);
      detector_->accuse(std::move(error), Evidence::Certain, now);
    }
    return true;
  }
  if (*step == Step::Blocked && dispatcher_->overdue(now)) detector_->overdue(now);
  if (*step == Step::Done) {
    std::optional<Error> refusal = dispatcher_->take_refusal();
    if (refusal) tell_whose(*refusal, refusal->peer, peers_);
    finish(dispatcher_->take_completed(), refusal);
    if (phase_.has_ended()) {
      effects_pending_.store(true, std::memory_order_relaxed);  // maybe time to acknowledge
    }
  }
  return *step != Step::Blocked;
}

void Engine::finish(std::vector<std::unique_ptr<Entry>> entries,
                    const std::optional<Error>& error) {
  for (auto& entry : entries) {
    const auto work = std::move(entry->work);
    if (error && !work->error) work->error = error;
    if (--work->remaining == 0) complete(work);
  }
  progress_->completed();
}

/// All of it is over.
void Engine::complete(const std::shared_ptr<Work>& work) {
  unfinished_.fetch_sub(1, std::memory_order_relaxed);
  work->done.store(true, std::memory_order_seq_cst);  // before completed() looks who sleeps
  if (work->on_done) notifier_.post([work] { work->on_done(*work); });
}

}  // namespace rueda

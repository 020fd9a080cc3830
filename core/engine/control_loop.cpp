#include "engine/control_loop.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "engine/failure/cause.h"
#include "engine/fast_path/fast_path.h"
#include "mutex.h"
#include "transport/control_channel.h"

namespace farandole {

namespace {

/// A stuck operation ends by its own time limit. Shutdown waits this much longer.
constexpr auto kGrace = std::chrono::seconds(1);
/// The time for all ranks to acknowledge the shutdown.
constexpr auto kCloseGrace = std::chrono::seconds(1);
/// For the last steps after a loss: the others wait to be told.
constexpr auto kLastSteps = std::chrono::milliseconds(10);

/// True for as long as this lives.
class Within {
 public:
  explicit Within(bool& flag) noexcept : flag_(flag), before_(std::exchange(flag, true)) {}
  ~Within() { flag_ = before_; }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  bool& flag_;
  bool before_;
};

/// Keeps the memory of an operation until the process ends, because a backend in Python may still
/// write to it.
void leave_in_use(const std::shared_ptr<Work>& work) {
  static Mutex mutex;
  static auto& left = *new std::vector<std::shared_ptr<Work>>;  // never destroyed
  work->in_use = true;
  const Lock lock(mutex);
  left.push_back(work);
}

}  // namespace

ControlLoop::ControlLoop(const Parts& parts, const FailureDetector::Options& options)
    : parts_(parts),
      progress_(*this, parts.peers.bell(), parts.peers.engine_bell(), parts.peers.waiter_bell()),
      detector_(options, parts.peers, parts.phase, parts.log, parts.dispatcher, *this) {}

bool ControlLoop::busy() const {
  return parts_.handles.unfinished() != 0 || !parts_.dispatcher.idle() ||
         parts_.negotiation.pending() || detector_.open() ||
         (fast_path_ != nullptr && fast_path_->busy()) ||
         (parts_.phase.has_ended() && !parts_.phase.has_closed());
}

std::optional<TimePoint> ControlLoop::next_deadline() const {
  if (parts_.phase.has_failed()) return std::nullopt;  // advance() does nothing
  auto at = TimePoint::max();
  if (const auto tick = parts_.negotiation.next_tick()) at = std::min(at, *tick);
  if (const auto due = parts_.dispatcher.deadline()) at = std::min(at, *due);
  if (const auto due = parts_.dispatcher.due()) at = std::min(at, *due);
  if (const auto due = detector_.next()) at = std::min(at, *due);
  if (fast_path_ != nullptr && fast_path_->next() != TimePoint{}) {
    at = std::min(at, fast_path_->next());
  }
  if (at == TimePoint::max()) return std::nullopt;
  return at;
}

/// True if nothing runs on this rank and nothing dispatched waits.
bool ControlLoop::at_rest() const {
  return parts_.dispatcher.idle() && (fast_path_ == nullptr || !fast_path_->open());
}

bool ControlLoop::advance() {
  if (parts_.phase.has_failed()) return false;
  const auto now = Clock::now();
  bool moved = receive(now);
  // Dispatches that were received before the failure must not start: their entries have failed
  // already.
  if (parts_.phase.has_failed()) return true;
  detector_.look(now);
  tell_whether_still(now);
  if (const auto tick = parts_.negotiation.next_tick(); tick && now >= *tick) {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    parts_.negotiation.negotiator()->tick(now, parts_.negotiation.effects());
    parts_.negotiation.moved();
  }
  if (parts_.peers.arrived()) {
    parts_.peers.take_arrivals();
    if (fast_path_ != nullptr) fast_path_->linked();
    moved = true;
  }
  if (fast_path_ != nullptr) moved |= fast_path_->step(now);
  moved |= apply_effects(now);
  if (detector_.open()) {
    moved |= detector_.decide(now);
  } else {
    moved |= step_batch(now);
  }
  return moved;
}

void ControlLoop::tell_whether_still(TimePoint now) {
  const bool still = parts_.handles.stands_still() && at_rest();
  if (still == still_) return;
  still_ = still;
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  parts_.negotiation.negotiator()->stand_still(still, now, parts_.negotiation.effects());
  parts_.negotiation.moved();
}

/// Asks the kernel once for all sockets: a look of a node with many children below it costs as much
/// as that of another. Sockets that hold a message are not asked for.
void ControlLoop::look_at_sockets() {
  asked_.clear();
  for (const auto& neighbour : parts_.peers.neighbours()) {
    if (neighbour.socket == nullptr) continue;
    asked_.push_back(neighbour.socket->wants());
    if (!neighbour.socket->has_message()) continue;
    asked_.back().fd = ~asked_.back().fd;  // negative: poll() leaves it out
  }
  if (!asked_.empty()) ::poll(asked_.data(), asked_.size(), 0);
}

/// What has come is read from all neighbours before the loss of one is reported.
bool ControlLoop::receive(TimePoint now) {
  bool moved = false;
  std::vector<std::pair<Rank, Error>> lost;
  look_at_sockets();
  std::size_t sockets = 0;
  for (auto& neighbour : parts_.peers.neighbours()) {
    ControlChannel& channel = *neighbour.channel;
    bool ready = false;
    if (neighbour.socket != nullptr) {
      const pollfd& asked = asked_[sockets++];
      ready = asked.fd < 0 || asked.revents != 0;
    } else {
      ready = channel.ready();
    }
    if (!ready) continue;
    auto fine = read(neighbour, moved, now);
    if (parts_.phase.has_failed()) return true;
    if (fine && channel.congested()) fine = channel.flush();
    if (!fine) lost.emplace_back(neighbour.rank, std::move(fine).error());
  }
  answer(now);
  for (auto& [rank, error] : lost) {
    detector_.report_loss(rank, std::move(error), Evidence::Control, now);
  }
  return moved;
}

/// Reads the messages of a neighbour, until the world fails by one of them. An error: the neighbour
/// is lost. `moved`: set if one was more than a heartbeat.
Result<void> ControlLoop::read(Peers::Neighbour& neighbour, bool& moved, TimePoint now) {
  for (;;) {
    auto message = neighbour.channel->receive();
    if (!message) return std::move(message).error();
    if (!*message) return {};
    if (detector_.heard(neighbour.rank, **message, now)) continue;
    if (!moved && parts_.timeline.marks_cycles()) parts_.timeline.cycle(now);
    moved = true;
    if (detector_.take(neighbour.rank, **message, now)) {
      if (parts_.phase.has_failed()) return {};
      continue;
    }
    if (auto fine = take(neighbour.rank, **message, now); !fine) return fine;
  }
}

/// A rank's messages are here before a descriptor tells that it has ended.
void ControlLoop::woken(const pollfd* fds, std::size_t count) {
  if (!parts_.phase.has_failed() && parts_.peers.lost(fds, count)) receive(Clock::now());
  detector_.woken(fds, count);
}

/// Handles a message that is not for the failure detector.
Result<void> ControlLoop::take(Rank from, std::span<const std::byte> message, TimePoint now) {
  if (fast_path_ != nullptr) {
    if (fast_path_->take(message, from, now)) return {};
  } else if (decode_ask(message)) {
    return {};  // this rank has no fast path, but other ranks have one
  }
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  auto fine =
      parts_.negotiation.negotiator()->take(from, message, now, parts_.negotiation.effects());
  parts_.negotiation.moved();
  unanswered_ = true;
  return fine;
}

/// What has come from all neighbours is answered together: a coordinator that is behind writes one
/// message in place of many.
void ControlLoop::answer(TimePoint now) {
  if (!std::exchange(unanswered_, false)) return;
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  parts_.negotiation.negotiator()->answer(now, parts_.negotiation.effects());
  parts_.negotiation.moved();
}

bool ControlLoop::apply_effects(TimePoint now) {
  if (applying_effects_ || !parts_.negotiation.pending()) return false;
  const Within applying(applying_effects_);
  if (parts_.timeline.marks_cycles()) parts_.timeline.cycle(now);
  schedule(now);
  send(now);
  for (const auto& text : applying_.warnings) parts_.log.write(LogLevel::Warning, text);
  for (const auto& text : applying_.errors) parts_.log.write(LogLevel::Error, text);
  fail_submissions();
  change_phase(now);
  return true;
}

/// Takes the effects of the negotiator, and queues its dispatches.
void ControlLoop::schedule(TimePoint now) {
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  parts_.negotiation.take(applying_);
  if (fast_path_ != nullptr) {
    fast_path_->hold(applying_, now);
  } else {
    decided_.append(applying_);
    parts_.submissions.enqueue(decided_, parts_.dispatcher);
  }
}

void ControlLoop::send(TimePoint now) {
  for (const auto& send : applying_.sends) {
    const auto bytes =
        std::span<const std::byte>(applying_.bytes).subspan(send.begin, send.end - send.begin);
    auto sent = parts_.peers.channel(send.to)->post(bytes);
    if (!sent) detector_.report_loss(send.to, std::move(sent).error(), Evidence::Control, now);
  }
}

void ControlLoop::fail_submissions() {
  for (Failure& failure : applying_.failures) {
    std::vector<std::unique_ptr<Entry>> entries;
    {
      const EngineLock::Guard lock(parts_.negotiation.mutex());
      entries.push_back(parts_.submissions.extract(failure.ticket));
    }
    if (!entries.front()) continue;
    if (failure.error.tensor.empty()) failure.error.tensor = entries.front()->name;
    finish(std::move(entries), failure.error);
  }
}

/// They have come to their end, all in the same way.
void ControlLoop::finish(std::vector<std::unique_ptr<Entry>> entries,
                         const std::optional<Error>& error) {
  for (auto& entry : entries) {
    const auto work = std::move(entry->work);
    if (error && !work->error) work->error = error;
    if (--work->remaining == 0) parts_.handles.complete(work);
  }
  progress_.completed();
}

/// Carries out effects about the end of the world.
void ControlLoop::change_phase(TimePoint now) {
  if (applying_.shutdown_by) {
    parts_.phase.ended.store(true, std::memory_order_relaxed);
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    if (fast_path_ != nullptr) fast_path_->close();
  }
  if (applying_.closed) parts_.phase.closed.store(true, std::memory_order_seq_cst);
  if (applying_.fatal) {
    if (applying_.fatal->code == Code::Shutdown) {
      abort(*applying_.fatal, std::nullopt);  // ends this engine; the world has ended already
    } else {
      detector_.report_failure(*applying_.fatal, Evidence::Certain, now);
    }
  }
  if (parts_.phase.has_ended() && !parts_.phase.acknowledged.load() && at_rest()) {
    parts_.phase.acknowledged.store(true);
    parts_.dispatcher.close_devices();
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    parts_.negotiation.negotiator()->acknowledge_shutdown(now, parts_.negotiation.effects());
    if (!parts_.negotiation.effects().empty()) parts_.negotiation.alert();
  }
  if (parts_.phase.has_closed()) progress_.completed();
}

bool ControlLoop::step_batch(TimePoint now) {
  Dispatcher& dispatcher = parts_.dispatcher;
  if (dispatcher.idle()) return false;
  const Within stepping(stepping_);
  auto step = dispatcher.step(now);
  if (!step) {
    Error error = std::move(step).error();
    if (error.code == Code::PeerLost) {
      const Rank peer = error.peer;
      detector_.report_loss(peer, std::move(error), Evidence::Data, now);
    } else {
      tell_whose(error, parts_.peers.self(), parts_.peers);
      detector_.report_failure(std::move(error), Evidence::Certain, now);
    }
    return true;
  }
  if (*step == Step::Blocked && dispatcher.overdue(now)) detector_.overdue(now);
  if (*step == Step::Done) {
    const auto change = dispatcher.take_change();
    if (change && fast_path_ != nullptr) fast_path_->changed(*change);
    std::optional<Error> refusal = dispatcher.take_refusal();
    if (refusal) tell_whose(*refusal, refusal->peer, parts_.peers);
    finish(dispatcher.take_completed(), refusal);
    if (parts_.phase.has_ended()) parts_.negotiation.alert();  // maybe time to acknowledge
  }
  return *step != Step::Blocked;
}

/// Whether an operation is reported as lost does not depend on what this rank looks at first: the
/// peer's bytes, its messages or its end. What fails here ends this.
void ControlLoop::finish_what_has_come() {
  if (stepping_) return;
  const auto over = [this] { return detector_.more_failed() || parts_.phase.quiet(); };
  auto now = Clock::now();
  const auto end = now + kLastSteps;
  for (bool moved = true; moved && now < end; now = Clock::now()) {
    moved = fast_path_ != nullptr && fast_path_->step(now);
    if (over()) return;
    moved |= apply_effects(now);
    if (over() || !may_step()) return;
    moved |= step_batch(now);
    if (over()) return;
  }
}

/// After the loss of a rank: what runs on a device, or behind a backend in Python, is not begun.
/// The lost rank cannot have served it before, and whoever begins it may be stuck in it.
bool ControlLoop::may_step() const {
  const bool elsewhere = parts_.foreign != nullptr || parts_.dispatcher.next_on_devices();
  return parts_.dispatcher.running() || !elsewhere;
}

bool ControlLoop::orderly_end() {
  const bool nothing_owed =
      parts_.dispatcher.idle() && (fast_path_ == nullptr || !fast_path_->holds());
  if (!parts_.phase.quiet() && !(parts_.phase.ended.load() && nothing_owed)) return false;
  if (!parts_.phase.failed.load()) parts_.phase.closed.store(true);
  progress_.completed();
  return true;
}

FailureDetector::Owner::Needs ControlLoop::needs(Rank rank) {
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  return {.owed = parts_.negotiation.negotiator()->owed(rank),
          .proposed = fast_path_ != nullptr ? fast_path_->proposed_to(rank) : std::string()};
}

/// Sends the first cause to all neighbours that can still be reached, and fails everything pending
/// with it.
void ControlLoop::abort(const Error& cause, std::optional<Rank> from) {
  if (cause.code == Code::PeerLost) detector_.finish_first();
  Error error = cause;
  if (error.code == Code::PeerLost && error.peer == parts_.peers.self()) {
    error.message = "the other ranks have given up this one: " + error.message;
  }
  if (error.code == Code::Timeout && error.peer == parts_.peers.self()) {
    error.message = "the other ranks have waited for this one: " + error.message;
  }
  std::vector<std::unique_ptr<Entry>> entries;
  {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    if (parts_.negotiation.failed()) return;
    parts_.negotiation.fail(error);
    entries = parts_.submissions.take_entries();
    if (fast_path_ != nullptr) fast_path_->fail(error);
  }
  detector_.close();
  parts_.log.write(LogLevel::Debug, "aborting: " + error.what());
  if (!parts_.phase.closed.load()) parts_.peers.leave_cause(cause);
  const auto frame = encode_cause(cause);
  for (auto& neighbour : parts_.peers.neighbours()) {
    if (parts_.phase.closed.load()) break;  // neighbours know that the world has ended
    if (neighbour.rank == from) continue;
    [[maybe_unused]] const auto sent =
        neighbour.channel->post(frame);  // the neighbour may be the lost rank
  }
  if (parts_.foreign != nullptr && error.code != Code::Shutdown) parts_.foreign->abort();
  if (error.code != Code::Shutdown) parts_.dispatcher.abort_devices();
  auto running = parts_.dispatcher.take_all();
  if (parts_.foreign != nullptr && parts_.foreign->stuck()) {
    for (const auto& entry : running) leave_in_use(entry->work);
  }
  std::move(running.begin(), running.end(), std::back_inserter(entries));
  if (parts_.timeline.recording()) parts_.timeline.aborted(Clock::now());
  parts_.phase.failed.store(true, std::memory_order_seq_cst);
  finish(std::move(entries), error);
}

void ControlLoop::leave(wire::Departure why, Duration operation_timeout) {
  {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    parts_.negotiation.negotiator()->shutdown(Clock::now(), parts_.negotiation.effects(),
                                              std::move(why));
    if (fast_path_ != nullptr) fast_path_->close();
    parts_.negotiation.alert();
  }
  if (parts_.peers.size() > 1) progress_.alert_holder();
  const auto over = [this] { return parts_.phase.closed.load() || parts_.phase.failed.load(); };
  const auto finished = [&] { return over() || parts_.phase.acknowledged.load(); };
  // Batches that were dispatched may still run. A stuck one ends by its own time limit.
  progress_.until([&] { return over() || parts_.phase.ended.load(); },
                  Clock::now() + operation_timeout + kGrace);
  progress_.until(finished, Clock::now() + operation_timeout + kGrace);
  progress_.until(over, Clock::now() + kCloseGrace);
}

void ControlLoop::end() {
  if (parts_.phase.acknowledged.load()) parts_.phase.closed.store(true);
  {  // Another user thread may still drive: this one ends the loop when it gets the progress lock.
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    parts_.negotiation.effects().fatal =
        Error{.code = Code::Shutdown, .message = "Horovod has been shut down"};
    parts_.negotiation.alert();
  }
  if (parts_.peers.size() > 1) progress_.alert_holder();
  progress_.until([this] { return parts_.phase.failed.load(); }, TimePoint::max());
}

}  // namespace farandole

/// The control loop, run by the holder of the progress lock: it reads control messages, calls the
/// negotiator's tick, carries out effects, steps the running batch, and ends everything when the
/// world ends.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <vector>

#include "backends/foreign_backends.h"
#include "engine/base/log.h"
#include "engine/base/phase.h"
#include "engine/base/progress.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/execution/submissions.h"
#include "engine/failure/detector.h"
#include "engine/fast_path/fast_path.h"
#include "engine/timeline/timeline.h"

namespace farandole {

/// Only the holder of the progress lock touches its state. It takes the engine lock for state that
/// submitting threads see too.
class ControlLoop final : private Driver, private FailureDetector::Owner {
 public:
  /// What it works with; all of it outlives this.
  struct Parts {
    Log& log;
    Timeline& timeline;
    Peers& peers;
    Phase& phase;
    Negotiation& negotiation;
    Submissions& submissions;
    Handles& handles;
    Dispatcher& dispatcher;
    ForeignBackends* foreign;  ///< null: no backend in Python
  };
  /// After Peers::open().
  ControlLoop(const Parts& parts, const FailureDetector::Options& options);

  /// The progress lock. Any thread.
  [[nodiscard]] Progress& progress() noexcept { return progress_; }
  [[nodiscard]] FailureDetector& detector() noexcept { return detector_; }
  /// Tells the loop that there is a fast path. Call it before anything is submitted.
  void use(FastPath* fast_path) noexcept { fast_path_ = fast_path; }

  // Any thread.

  /// Asks for the shutdown of the world and waits until all ranks have finished: at most as long as
  /// one operation may take, and 1 s more.
  void leave(wire::Departure why, Duration operation_timeout)
      FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  /// Ends everything on this rank: nothing runs afterwards.
  void end() FARANDOLE_EXCLUDES(progress_lock, engine_lock);

 private:
  bool advance() override FARANDOLE_REQUIRES(progress_lock);
  [[nodiscard]] bool busy() const override FARANDOLE_REQUIRES(progress_lock);
  [[nodiscard]] bool in_operation() const override FARANDOLE_REQUIRES(progress_lock) {
    return parts_.dispatcher.running();
  }
  [[nodiscard]] bool alerted() const override {
    return (parts_.negotiation.pending() || parts_.peers.arrived()) && !parts_.phase.has_failed();
  }
  [[nodiscard]] bool awaits_descriptors() const override FARANDOLE_REQUIRES(progress_lock) {
    return !parts_.phase.quiet() && parts_.peers.awaits_descriptors();
  }
  [[nodiscard]] std::optional<TimePoint> next_deadline() const override
      FARANDOLE_REQUIRES(progress_lock);
  void watch(std::vector<pollfd>& fds) const override FARANDOLE_REQUIRES(progress_lock) {
    detector_.watch(fds);
  }
  void woken(const pollfd* fds, std::size_t count) override FARANDOLE_REQUIRES(progress_lock);
  void pulse() noexcept override { detector_.pulse(); }

  bool orderly_end() override FARANDOLE_REQUIRES(progress_lock);
  Needs needs(Rank rank) override FARANDOLE_REQUIRES(progress_lock);
  void finish_what_has_come() override FARANDOLE_REQUIRES(progress_lock);
  void abort(const Error& cause, std::optional<Rank> from) override
      FARANDOLE_REQUIRES(progress_lock);

  void look_at_sockets() FARANDOLE_REQUIRES(progress_lock);
  bool receive(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  Result<void> read(Peers::Neighbour& neighbour, bool& moved, TimePoint now)
      FARANDOLE_REQUIRES(progress_lock);
  Result<void> take(Rank from, std::span<const std::byte> message, TimePoint now)
      FARANDOLE_REQUIRES(progress_lock);
  void answer(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  bool apply_effects(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  void send(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  void fail_submissions() FARANDOLE_REQUIRES(progress_lock);
  void finish(std::vector<std::unique_ptr<Entry>> entries, const std::optional<Error>& error)
      FARANDOLE_REQUIRES(progress_lock);
  void change_phase(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  void schedule(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  bool step_batch(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  [[nodiscard]] bool may_step() const FARANDOLE_REQUIRES(progress_lock);
  [[nodiscard]] bool at_rest() const FARANDOLE_REQUIRES(progress_lock);
  void tell_whether_still(TimePoint now) FARANDOLE_REQUIRES(progress_lock);

  Parts parts_;
  Progress progress_;
  FailureDetector detector_;
  FastPath* fast_path_ = nullptr;  // null: no fast path

  Effects applying_ FARANDOLE_GUARDED_BY(progress_lock);
  /// Without a fast path: empty between two calls.
  Decided decided_ FARANDOLE_GUARDED_BY(progress_lock);
  // What is reported meanwhile must not begin the same again.
  bool stepping_ FARANDOLE_GUARDED_BY(progress_lock) = false;
  bool applying_effects_ FARANDOLE_GUARDED_BY(progress_lock) = false;
  /// By neighbour with a socket, at the last look.
  std::vector<pollfd> asked_ FARANDOLE_GUARDED_BY(progress_lock);
  bool unanswered_ FARANDOLE_GUARDED_BY(progress_lock) = false;  // messages were taken
  bool still_ FARANDOLE_GUARDED_BY(progress_lock) = false;       // as the negotiator was told
};

}  // namespace farandole

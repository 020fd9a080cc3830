/// Who makes progress: the baton, and how its holder waits.
///
/// One baton per engine; its holder drives. A thread of the user that waits takes it and drives the
/// engine itself; the engine thread drives when nobody waits. Nobody else touches the driver.
///
///   holder awake            bell word = Nobody: peers do not ring, the holder polls
///   holder asleep           bell word = its name: peers ring its eventfd
///   baton free, engine      bell word = EngineThread: peers ring it, it takes the baton
///     thread asleep
///   baton free, *lingering* bell word = Nobody although nobody polls: see release()
///
/// Waiting is: a few pauses, then sched_yield for at most 50 µs, then sleep until a bell, a
/// descriptor or a deadline. Spinning without yielding is the worst one can do when ranks outnumber
/// cores, so nobody does.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "transport/doorbell.h"
#include "transport/fd.h"
#include "types.h"

namespace rueda {

/// What the baton's holder drives. All calls are made by the holder only, one at a time.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Does what can be done now, about one chunk of it. True if anything moved.
  virtual bool advance() = 0;
  /// True while others may need this rank: something submitted is not complete, or the world
  /// changes.
  [[nodiscard]] virtual bool busy() const = 0;
  /// True while a started operation is waiting for peers (they are expected any moment).
  [[nodiscard]] virtual bool in_operation() const = 0;
  /// Something new was put where advance() finds it, and nobody has looked yet. Any thread.
  [[nodiscard]] virtual bool alerted() const = 0;
  /// True while it is a descriptor, not a bell, that says when peers have moved.
  [[nodiscard]] virtual bool awaits_descriptors() const = 0;
  /// When advance() has something to do even if nothing arrives.
  [[nodiscard]] virtual std::optional<TimePoint> next_deadline() const = 0;
  /// Adds the descriptors whose readiness may mean work.
  virtual void watch(std::vector<pollfd>& fds) const = 0;
  /// This process runs, though advance() may not be called for a while. Any thread.
  virtual void pulse() noexcept = 0;
  /// After a sleep: the entries that watch() added, with their revents.
  virtual void woken(const pollfd* fds, std::size_t count) = 0;
};

/// A blocking call looks up at least this often, so that its thread can see signals.
inline constexpr auto kBlink = std::chrono::milliseconds(100);

class Progress {
 public:
  /// `word`: the bell word that peers see. The descriptors are eventfds (non-blocking), or -1 where
  /// there is no engine thread.
  Progress(Driver& driver, BellWord& word, int engine_bell, int waiter_bell) noexcept
      : driver_(driver), word_(word), engine_bell_(engine_bell), waiter_bell_(waiter_bell) {}

  /// Drives, or sleeps while another thread does, until `done` or the deadline. Any thread.
  /// Returns done().
  bool until(const std::function<bool()>& done, TimePoint deadline);

  /// Takes the baton if it is free; its new holder gives it back.
  [[nodiscard]] bool take() noexcept;
  void give_back() { release(); }
  /// until() for the holder, who keeps the baton.
  bool until_held(const std::function<bool()>& done, TimePoint deadline);

  /// Drives as long as something moves, unless somebody else does already.
  void poke();

  /// The body of the engine thread.
  void run(const std::stop_token& stop);

  /// There is something new for whoever drives, put where advance() finds it. Any thread, no lock.
  void alert() noexcept;

  /// The same, from a thread that comes to drive by itself in a moment: only a holder is told.
  void alert_holder() noexcept {
    if (baton_.load(std::memory_order_seq_cst)) alert();
  }

  /// advance() has something to do at `when`: sees to it that somebody is awake then. Any thread.
  void due(TimePoint when) noexcept;

  /// Makes the engine thread look at its stop token. Any thread.
  void stop() noexcept {
    linger_.store(false);
    wake_engine_thread();
  }

  /// Handles were completed: threads that sleep beside the holder look again.
  void completed() noexcept;

 private:
  [[nodiscard]] bool acquire() noexcept;
  void release();
  void drive(const std::function<bool()>& done, TimePoint deadline);
  void drive_as_engine_thread(const std::stop_token& stop);
  void give_way();
  [[nodiscard]] bool sleep_without_baton();
  void sleep(int bell, TimePoint deadline);
  void park(const std::function<bool()>& done, TimePoint deadline);
  void notify_parked() noexcept;
  void wake_engine_thread() noexcept;

  Driver& driver_;
  BellWord& word_;
  int engine_bell_;
  int waiter_bell_;

  std::atomic<bool> baton_{false};         // true: held
  std::atomic<bool> engine_wants_{false};  // the engine thread was refused the baton and sleeps
  std::atomic<int> waiters_{0};            // user threads inside until()
  std::atomic<std::uint64_t> releases_{0};
  std::atomic<std::int64_t> engine_sleeps_until_ns_{0};  // when the engine thread wakes by itself
  std::atomic<bool> linger_{false};  // a release asks the engine thread to sleep in short slices
  std::uint64_t seen_releases_ = 0;  // engine thread only: when it was refused the baton last
  bool lingering_ = false;           // engine thread only: it does
  TimePoint last_release_{};         // holder only

  std::mutex park_mutex_;
  std::condition_variable parked_;  // waiters that found the baton taken
  std::atomic<int> parked_count_{0};

  std::vector<pollfd> fds_;         // holder only (user threads): reused between sleeps
  std::vector<pollfd> engine_fds_;  // engine thread only
};

}  // namespace rueda

/// The progress lock: which thread makes progress, and how it waits.
///
/// There is one progress lock per engine. Its holder *drives*: it runs negotiation and data
/// transfer. A user thread that waits takes the lock and drives the engine itself. The engine
/// thread drives when no user thread waits. Only the holder touches the driver.
///
///   holder awake          bell word = Nobody: peers do not ring, the holder polls
///   holder asleep         bell word = its name: peers ring its eventfd
///   lock free, engine     bell word = EngineThread: peers ring it, it takes the lock
///     thread asleep
///   lock free, lingering  bell word = Nobody although nobody polls: see release()
///
/// A waiting thread pauses a few times, then calls sched_yield for at most 50 µs, then sleeps until
/// a bell, a descriptor or a deadline wakes it. No thread spins without yielding: with more ranks
/// than cores that would keep the awaited rank from running.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "engine/base/engine_lock.h"
#include "engine/base/log.h"
#include "engine/base/spin_wait.h"
#include "mutex.h"
#include "result.h"
#include "transport/doorbell.h"
#include "transport/fd.h"
#include "types.h"

namespace farandole {

/// What the holder of the progress lock drives.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Does what can be done now, about one chunk. True if anything moved.
  virtual bool advance() FARANDOLE_REQUIRES(progress_lock) = 0;
  /// True while other ranks may need this one: a submission is not complete, or the world is
  /// ending.
  [[nodiscard]] virtual bool busy() const FARANDOLE_REQUIRES(progress_lock) = 0;
  /// True while a started operation waits for peers, which are expected any moment.
  [[nodiscard]] virtual bool in_operation() const FARANDOLE_REQUIRES(progress_lock) = 0;
  /// True if there is new work that advance() has not seen yet. Any thread.
  [[nodiscard]] virtual bool alerted() const = 0;
  /// True while a descriptor, not a bell, tells when peers have moved.
  [[nodiscard]] virtual bool awaits_descriptors() const FARANDOLE_REQUIRES(progress_lock) = 0;
  /// When advance() is due even if nothing arrives.
  [[nodiscard]] virtual std::optional<TimePoint> next_deadline() const
      FARANDOLE_REQUIRES(progress_lock) = 0;
  /// Adds the descriptors that may tell about work.
  virtual void watch(std::vector<pollfd>& fds) const FARANDOLE_REQUIRES(progress_lock) = 0;
  /// See Beats::pulse(). Any thread.
  virtual void pulse() noexcept = 0;
  /// After a sleep: the entries that watch() added, with their revents.
  virtual void woken(const pollfd* fds, std::size_t count) FARANDOLE_REQUIRES(progress_lock) = 0;
};

/// A blocking call returns to its binding at least this often, so that its thread can handle
/// signals.
inline constexpr auto kBlink = std::chrono::milliseconds(100);

class Progress {
 public:
  /// `word`: the bell word that peers see. The descriptors are eventfds (non-blocking), or -1 where
  /// there is no engine thread.
  Progress(Driver& driver, BellWord& word, int engine_bell, int waiter_bell) noexcept
      : driver_(driver), word_(word), engine_bell_(engine_bell), waiter_bell_(waiter_bell) {}

  /// Drives, or sleeps while another thread does, until `done` or the deadline. Any thread.
  /// Returns done().
  bool until(const std::function<bool()>& done, TimePoint deadline)
      FARANDOLE_EXCLUDES(progress_lock);

  /// Takes the progress lock if it is free. The new holder must give_back().
  [[nodiscard]] bool take() noexcept FARANDOLE_TRY_ACQUIRE(true, progress_lock);
  void give_back() FARANDOLE_RELEASE(progress_lock) { release(); }
  /// until() for the holder, who keeps the lock. `spin`: of a wait that goes on here.
  bool until_held(const std::function<bool()>& done, TimePoint deadline)
      FARANDOLE_REQUIRES(progress_lock);
  bool until_held(const std::function<bool()>& done, TimePoint deadline, SpinWait spin)
      FARANDOLE_REQUIRES(progress_lock);

  /// Drives as long as something moves, unless another thread already drives.
  void poke();

  /// The body of the engine thread.
  void run(const std::stop_token& stop) FARANDOLE_EXCLUDES(progress_lock);

  /// Tells the driving thread, or wakes one, because there is new work for advance(). Any thread,
  /// takes no lock.
  void alert() noexcept;

  /// The same for a thread that is about to drive itself: tells the current holder only.
  void alert_holder() noexcept {
    if (locked_.load(std::memory_order_seq_cst)) alert();
  }

  /// Makes sure that a thread is awake at `when`, because advance() is due then. Any thread.
  void due(TimePoint when) noexcept;

  /// Wakes the engine thread, which looks at its stop token. Any thread.
  void stop() noexcept {
    linger_.store(false);
    wake_engine_thread();
  }

  /// Wakes threads that sleep while another one drives, because handles were completed.
  void completed() noexcept;

 private:
  [[nodiscard]] bool acquire() noexcept FARANDOLE_TRY_ACQUIRE(true, progress_lock);
  /// The flag is the lock: nothing else tells the compiler that it is free.
  void unlock() noexcept FARANDOLE_RELEASE(progress_lock) FARANDOLE_NO_THREAD_SAFETY_ANALYSIS {
    locked_.store(false, std::memory_order_seq_cst);
  }
  void release() FARANDOLE_RELEASE(progress_lock);
  void drive(const std::function<bool()>& done, TimePoint deadline, SpinWait spin)
      FARANDOLE_REQUIRES(progress_lock);
  void drive_as_engine_thread(const std::stop_token& stop) FARANDOLE_RELEASE(progress_lock);
  void give_way() FARANDOLE_RELEASE(progress_lock);
  void sleep_without_lock() FARANDOLE_RELEASE(progress_lock);
  void sleep(int bell, TimePoint deadline) FARANDOLE_REQUIRES(progress_lock);
  void park(const std::function<bool()>& done, TimePoint deadline);
  void notify_parked() noexcept;
  void wake_engine_thread() noexcept;

  Driver& driver_;
  BellWord& word_;
  int engine_bell_;
  int waiter_bell_;

  std::atomic<bool> locked_{false};        // true: held
  std::atomic<bool> engine_wants_{false};  // the engine thread found the lock taken and sleeps
  std::atomic<int> waiters_{0};            // user threads inside until()
  std::atomic<std::uint64_t> releases_{0};
  std::atomic<std::int64_t> engine_sleeps_until_ns_{0};  // when the engine thread wakes by itself
  std::atomic<bool> linger_{false};  // a release asks the engine thread to sleep in short slices
  std::uint64_t seen_releases_ =
      0;  // engine thread only: value of releases_ when it last found the lock taken
  bool lingering_ = false;  // engine thread only: it sleeps in short slices
  TimePoint last_release_ FARANDOLE_GUARDED_BY(progress_lock){};

  Mutex park_mutex_;
  std::condition_variable_any parked_;  // waiters that found the lock taken
  std::atomic<int> parked_count_{0};

  // User threads; reused between sleeps.
  std::vector<pollfd> fds_ FARANDOLE_GUARDED_BY(progress_lock);
  std::vector<pollfd> engine_fds_;  // engine thread only
};

/// The thread of an engine that drives when no user thread waits.
class EngineThread {
 public:
  /// `progress` outlives it. `core`: the only one that it runs on; negative: any. A core that it
  /// cannot have is a line in the log. Fails if the system has no thread left.
  Result<void> start(Progress& progress, int core, Log& log);
  /// Joins it. Idempotent.
  void stop();
  /// In a forked child the thread does not exist: forget it.
  void abandon() noexcept;

 private:
  Progress* progress_ = nullptr;
  std::jthread thread_;
};

}  // namespace farandole

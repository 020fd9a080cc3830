#include "engine/base/progress.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace farandole {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kPauses = 4;  // one advance() costs as much as 30 pauses
/// After so many steps of an operation, a driving user thread checks its deadline.
constexpr unsigned kStepsBetweenLooks = 64;
constexpr auto kYield = microseconds(50);
/// How long a rank that needs nothing from others may leave messages unread.
constexpr auto kLinger = milliseconds(5);
/// If blocking calls follow each other within this time, the engine thread lingers; see release().
constexpr auto kHot = milliseconds(1);
constexpr auto kLongSleep = std::chrono::seconds(60);
/// User threads that sleep look up at least this often, so that they can handle signals.
constexpr auto kParkSlice = milliseconds(50);

void drain(int bell) noexcept {
  std::uint64_t count;
  while (::read(bell, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

/// Number of descriptors that are ready; 0 once the deadline has passed, or for no reason.
int wait_for(std::vector<pollfd>& fds, TimePoint deadline) {
  const auto left = std::clamp<Duration>(deadline - Clock::now(), Duration::zero(), kLongSleep);
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout{.tv_sec = seconds.count(),
                         .tv_nsec = std::chrono::nanoseconds(left - seconds).count()};
  const int ready = std::max(0, ::ppoll(fds.data(), fds.size(), &timeout, nullptr));
  if (ready > 0 && (fds.front().revents & POLLNVAL) != 0) {
    // The script has closed the bell's descriptor, so poll() returns at once. The nap keeps this
    // loop from using a whole core.
    const timespec nap{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kLinger).count()};
    ::ppoll(nullptr, 0, &nap, nullptr);
  }
  return ready;
}

void set(BellWord& word, Sleeper sleeper) noexcept {
  // Other processes only ever write Nobody there. So if it is Nobody already, the store can be left
  // out.
  if (sleeper == Sleeper::Nobody && word.sleeper.load(std::memory_order_relaxed) == 0) return;
  word.sleeper.store(static_cast<std::uint32_t>(sleeper), std::memory_order_seq_cst);
}

bool pin(std::jthread& thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  return ::pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores) == 0;
}

}  // namespace

bool Progress::acquire() noexcept {
  return !locked_.load(std::memory_order_relaxed) &&
         !locked_.exchange(true, std::memory_order_seq_cst);
}

void Progress::wake_engine_thread() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(engine_bell_, &one, sizeof one);
}

void Progress::notify_parked() noexcept {
  if (parked_count_.load(std::memory_order_seq_cst) == 0) return;
  const Lock lock(park_mutex_);
  parked_.notify_all();
}

void Progress::completed() noexcept { notify_parked(); }

void Progress::alert() noexcept {
  // A holder that is awake, or about to look once more before it sleeps, finds the new work itself.
  // If the lock is free, the engine thread must be woken, also if it lingers.
  if (!locked_.load(std::memory_order_seq_cst)) {
    linger_.store(false);
    wake_engine_thread();
  } else {
    Doorbell(&word_, engine_bell_, waiter_bell_).ring();
  }
}

void Progress::due(TimePoint when) noexcept {
  const bool held = locked_.load(std::memory_order_seq_cst);
  if (held || when.time_since_epoch().count() < engine_sleeps_until_ns_.load()) alert();
}

/// Gives the progress lock back to the engine thread. Between two blocking calls of a user thread,
/// no other rank needs this one. If such calls follow each other closely, the bell word stays at
/// Nobody (*lingering*): peers do not ring, which saves a wake-up of the engine thread that would
/// only delay the user thread. Meanwhile the engine thread wakes every 5 ms, and it takes over when
/// the calls have ceased.
void Progress::release() {
  const auto now = Clock::now();
  const auto engine_wakes = TimePoint(Duration(engine_sleeps_until_ns_.load()));
  const bool hot = now - last_release_ < kHot;
  last_release_ = now;
  releases_.fetch_add(1, std::memory_order_relaxed);
  bool wake = false;
  if (hot && !driver_.busy()) {
    wake = engine_wakes >
           now + kLinger;  // one wake-up, which makes it sleep in short slices from then on
    if (wake) linger_.store(true);
  } else {
    set(word_, Sleeper::EngineThread);
    linger_.store(false);
    wake = driver_.advance();  // the second look
    wake |=
        driver_
            .awaits_descriptors();  // the engine thread may be asleep on an old set of descriptors
    if (const auto deadline = driver_.next_deadline()) wake |= *deadline < engine_wakes;
  }
  unlock();
  wake |= engine_wants_.exchange(false, std::memory_order_seq_cst);
  if (driver_
          .alerted()) {  // by a thread that saw the lock held, after this thread's last advance()
    linger_.store(false);
    wake = true;
  }
  if (wake && engine_bell_ >= 0) wake_engine_thread();
  notify_parked();
  if (wake && engine_bell_ < 0) poke();  // there is no engine thread
}

bool Progress::until(const std::function<bool()>& done, TimePoint deadline) {
  if (done()) return true;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  while (!done()) {
    if (take()) {
      drive(done, deadline, SpinWait(kPauses));
      release();
      break;
    }
    if (Clock::now() >= deadline) break;
    park(done, deadline);
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return done();
}

bool Progress::take() noexcept {
  if (!acquire()) return false;
  set(word_, Sleeper::Nobody);
  return true;
}

bool Progress::until_held(const std::function<bool()>& done, TimePoint deadline) {
  return until_held(done, deadline, SpinWait(kPauses));
}

bool Progress::until_held(const std::function<bool()>& done, TimePoint deadline, SpinWait spin) {
  drive(done, deadline, spin);
  return done();
}

void Progress::poke() {
  if (!take()) return;
  while (driver_.advance()) {
  }
  release();
}

void Progress::park(const std::function<bool()>& done, TimePoint deadline) {
  const auto start = Clock::now();
  while (Clock::now() - start < kYield) {  // the engine thread gives way between two steps
    if (!locked_.load(std::memory_order_relaxed) || done()) return;
    ::sched_yield();
  }
  Lock lock(park_mutex_);
  parked_count_.fetch_add(1, std::memory_order_seq_cst);
  if (locked_.load(std::memory_order_seq_cst) && !done()) {
    parked_.wait_until(lock, std::min(deadline, Clock::now() + kParkSlice));
  }
  parked_count_.fetch_sub(1, std::memory_order_seq_cst);
}

void Progress::drive(const std::function<bool()>& done, TimePoint deadline, SpinWait spin) {
  unsigned steps = 0;
  while (!done()) {
    if (driver_.advance()) {
      spin.reset();
      // A long operation must not hide a signal for long. Checked rarely, as reading the clock
      // costs time.
      if (++steps % kStepsBetweenLooks == 0 && Clock::now() >= deadline) return;
      continue;
    }
    if (done()) return;
    if (spin.wait()) continue;
    if (Clock::now() >= deadline) return;
    set(word_, Sleeper::Waiter);
    if (!driver_.advance() && !done()) {  // the second look
      if (const auto due = driver_.next_deadline()) {
        sleep(waiter_bell_, std::min(deadline, *due));
      } else {
        sleep(waiter_bell_, deadline);
      }
    }
    set(word_, Sleeper::Nobody);
    spin.reset();
  }
}

void Progress::sleep(int bell, TimePoint deadline) {
  fds_.clear();
  fds_.push_back({.fd = bell, .events = POLLIN, .revents = 0});
  driver_.watch(fds_);
  if (wait_for(fds_, deadline) == 0) return;
  if (fds_.front().revents != 0) drain(bell);
  driver_.woken(fds_.data() + 1, fds_.size() - 1);
}

void Progress::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (acquire()) {
      drive_as_engine_thread(stop);
      continue;
    }
    // A user thread drives. While user threads take and release the lock often, this thread sleeps
    // in short slices instead of being woken, because each wake-up would delay the next call.
    const auto releases = releases_.load(std::memory_order_relaxed);
    const bool busy_traffic = std::exchange(seen_releases_, releases) != releases;
    if (!busy_traffic) engine_wants_.store(true, std::memory_order_seq_cst);
    if (!locked_.load(std::memory_order_seq_cst)) continue;  // given back just now
    const auto wake_at = Clock::now() + (busy_traffic ? Duration(kLinger) : Duration(kLongSleep));
    engine_sleeps_until_ns_.store(wake_at.time_since_epoch().count());
    engine_fds_.assign(1, {.fd = engine_bell_, .events = POLLIN, .revents = 0});
    if (wait_for(engine_fds_, wake_at) > 0) drain(engine_bell_);
    driver_.pulse();
    engine_wants_.store(false, std::memory_order_relaxed);
  }
}

void Progress::drive_as_engine_thread(const std::stop_token& stop) {
  set(word_, Sleeper::Nobody);
  SpinWait spin(0);
  while (!stop.stop_requested()) {
    if (driver_.advance()) {
      spin.reset();
      if (waiters_.load(std::memory_order_relaxed) == 0) continue;
    }
    if (waiters_.load(std::memory_order_seq_cst) > 0) {
      give_way();
      return;
    }
    // Peers are running the operation and will move any moment. A sleep and wake-up would cost more
    // than this wait.
    if (driver_.in_operation() && spin.wait()) continue;
    spin.reset();
    set(word_, Sleeper::EngineThread);
    if (driver_.advance()) continue;  // the second look
    sleep_without_lock();
    if (!acquire()) return;
    set(word_, Sleeper::Nobody);
    driver_.woken(engine_fds_.data() + 1, engine_fds_.size() - 1);
  }
  set(word_, Sleeper::EngineThread);
  unlock();
  notify_parked();
}

/// A user thread waits and will drive by itself. Until it does, peers ring the engine thread.
void Progress::give_way() {
  set(word_, Sleeper::EngineThread);
  unlock();
  notify_parked();
  const auto start = Clock::now();
  while (Clock::now() - start < kYield && waiters_.load() > 0 && !locked_.load()) ::sched_yield();
}

/// The engine thread sleeps without the lock, which any thread may take meanwhile.
void Progress::sleep_without_lock() {
  auto wake_at = Clock::now() + kLongSleep;
  if (const auto due = driver_.next_deadline()) wake_at = std::min(wake_at, *due);
  engine_fds_.clear();
  engine_fds_.push_back({.fd = engine_bell_, .events = POLLIN, .revents = 0});
  driver_.watch(engine_fds_);
  engine_sleeps_until_ns_.store(wake_at.time_since_epoch().count());
  unlock();
  notify_parked();
  auto releases = releases_.load(std::memory_order_relaxed);
  for (;;) {
    const int ready = wait_for(engine_fds_, wake_at);
    if (ready > 0 && engine_fds_.front().revents != 0) drain(engine_bell_);
    const auto now_releases = releases_.load(std::memory_order_relaxed);
    const bool user_threads_drive = now_releases != releases || locked_.load();
    const bool stay = linger_.exchange(false) || (ready == 0 && lingering_ && user_threads_drive);
    if (!stay) break;
    lingering_ = true;
    driver_.pulse();
    releases = now_releases;
    wake_at = Clock::now() + kLinger;
    engine_sleeps_until_ns_.store(wake_at.time_since_epoch().count());
  }
  lingering_ = false;
}

Result<void> EngineThread::start(Progress& progress, int core, Log& log) {
  progress_ = &progress;
  try {
    thread_ = std::jthread([&progress](const std::stop_token& stop) { progress.run(stop); });
  } catch (const std::system_error& error) {
    return Error::system("The engine cannot start its thread (limited by `ulimit -u` or `-v`?)",
                         error.code().value());
  }
  ::pthread_setname_np(thread_.native_handle(), "hvd-engine");
  if (core >= 0 && !pin(thread_, core)) {
    log.write(LogLevel::Error, "HOROVOD_THREAD_AFFINITY: cannot pin the engine thread to core " +
                                   std::to_string(core));
  }
  return {};
}

void EngineThread::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  progress_->stop();
  thread_.join();
}

void EngineThread::abandon() noexcept {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace farandole

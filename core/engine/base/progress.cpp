#include "engine/base/progress.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/patience.h"

namespace rueda {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kPauses = 4;  // a look at everything that moves costs as much as 30 pauses
/// Steps of an operation after which a driving user thread looks whether its deadline has passed.
constexpr unsigned kStepsBetweenLooks = 64;
constexpr auto kYield = microseconds(50);
/// How long a rank that needs nothing from others may go without anybody listening.
constexpr auto kLinger = milliseconds(5);
/// Blocking calls closer together than this make the engine thread stay out of the way.
constexpr auto kHot = milliseconds(1);
constexpr auto kLongSleep = std::chrono::seconds(60);
/// User threads look up at least this often, so that the caller can see signals.
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
    // Somebody has closed the bell: it is always ready now, and must not keep a core busy.
    const timespec nap{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kLinger).count()};
    ::ppoll(nullptr, 0, &nap, nullptr);
  }
  return ready;
}

void set(BellWord& word, Sleeper sleeper) noexcept {
  // Others only ever put Nobody there, which costs nothing to find again.
  if (sleeper == Sleeper::Nobody && word.sleeper.load(std::memory_order_relaxed) == 0) return;
  word.sleeper.store(static_cast<std::uint32_t>(sleeper), std::memory_order_seq_cst);
}

}  // namespace

bool Progress::acquire() noexcept {
  return !baton_.load(std::memory_order_relaxed) &&
         !baton_.exchange(true, std::memory_order_seq_cst);
}

void Progress::wake_engine_thread() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(engine_bell_, &one, sizeof one);
}

void Progress::notify_parked() noexcept {
  if (parked_count_.load(std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(park_mutex_);
  parked_.notify_all();
}

void Progress::completed() noexcept { notify_parked(); }

void Progress::alert() noexcept {
  // A holder that is awake, or is about to look once more before it sleeps, finds what is new by
  // itself. With the baton free the engine thread has to come, also when it lingers.
  if (!baton_.load(std::memory_order_seq_cst)) {
    linger_.store(false);
    wake_engine_thread();
  } else {
    Doorbell(&word_, engine_bell_, waiter_bell_).ring();
  }
}

void Progress::due(TimePoint when) noexcept {
  const bool held = baton_.load(std::memory_order_seq_cst);
  if (held || when.time_since_epoch().count() < engine_sleeps_until_ns_.load()) alert();
}

/// Gives the baton back to the engine thread. Between two blocking calls of a user thread this rank
/// owes nobody anything: if such calls follow each other closely, peers are left to believe that
/// somebody polls (*lingering*), so that their next message does not cost a wake-up of the engine
/// thread that would only get in the user thread's way. The engine thread, awake every 5 ms
/// meanwhile, takes over when the calls have ceased.
void Progress::release() {
  const auto now = Clock::now();
  const auto engine_wakes = TimePoint(Duration(engine_sleeps_until_ns_.load()));
  const bool hot = now - last_release_ < kHot;
  last_release_ = now;
  releases_.fetch_add(1, std::memory_order_relaxed);
  bool wake = false;
  if (hot && !driver_.busy()) {
    wake = engine_wakes > now + kLinger;  // once: to make it sleep in short slices
    if (wake) linger_.store(true);
  } else {
    set(word_, Sleeper::EngineThread);
    linger_.store(false);
    wake = driver_.advance();              // the second look
    wake |= driver_.awaits_descriptors();  // the engine thread may sleep on others
    if (const auto deadline = driver_.next_deadline()) wake |= *deadline < engine_wakes;
  }
  baton_.store(false, std::memory_order_seq_cst);
  wake |= engine_wants_.exchange(false, std::memory_order_seq_cst);
  if (driver_.alerted()) {  // by somebody who saw the baton held, after this thread's last look
    linger_.store(false);
    wake = true;
  }
  if (wake && engine_bell_ >= 0) wake_engine_thread();
  notify_parked();
  if (wake && engine_bell_ < 0) poke();  // nobody else goes on
}

bool Progress::until(const std::function<bool()>& done, TimePoint deadline) {
  if (done()) return true;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  while (!done()) {
    if (take()) {
      drive(done, deadline);
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
  drive(done, deadline);
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
    if (!baton_.load(std::memory_order_relaxed) || done()) return;
    ::sched_yield();
  }
  std::unique_lock lock(park_mutex_);
  parked_count_.fetch_add(1, std::memory_order_seq_cst);
  if (baton_.load(std::memory_order_seq_cst) && !done()) {
    parked_.wait_until(lock, std::min(deadline, Clock::now() + kParkSlice));
  }
  parked_count_.fetch_sub(1, std::memory_order_seq_cst);
}

void Progress::drive(const std::function<bool()>& done, TimePoint deadline) {
  Patience patience(kPauses);
  unsigned steps = 0;
  while (!done()) {
    if (driver_.advance()) {
      patience.reset();
      // Seldom, as it costs a look at the clock: a long operation must not hide a signal for long.
      if (++steps % kStepsBetweenLooks == 0 && Clock::now() >= deadline) return;
      continue;
    }
    if (done()) return;
    if (patience.wait()) continue;
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
    patience.reset();
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
    // A user thread drives. While such threads come and go, short slices replace their wake-ups:
    // each would only get in the way of the next call.
    const auto releases = releases_.load(std::memory_order_relaxed);
    const bool busy_traffic = std::exchange(seen_releases_, releases) != releases;
    if (!busy_traffic) engine_wants_.store(true, std::memory_order_seq_cst);
    if (!baton_.load(std::memory_order_seq_cst)) continue;  // given back just now
    const auto wake_at = Clock::now() + (busy_traffic ? Duration(kLinger) : Duration(kLongSleep));
    engine_sleeps_until_ns_.store(wake_at.time_since_epoch().count());
    engine_fds_.assign(1, {.fd = engine_bell_, .events = POLLIN, .revents = 0});
    if (wait_for(engine_fds_, wake_at) > 0) drain(engine_bell_);
    driver_.pulse();
    engine_wants_.store(false, std::memory_order_relaxed);
  }
}

/// Comes in holding the baton and leaves without it.
void Progress::drive_as_engine_thread(const std::stop_token& stop) {
  set(word_, Sleeper::Nobody);
  Patience patience(0);
  while (!stop.stop_requested()) {
    if (driver_.advance()) {
      patience.reset();
      if (waiters_.load(std::memory_order_relaxed) == 0) continue;
    }
    if (waiters_.load(std::memory_order_seq_cst) > 0) {
      give_way();
      return;
    }
    // Peers that are at it will move any moment: a wake-up would cost more than this.
    if (driver_.in_operation() && patience.wait()) continue;
    patience.reset();
    set(word_, Sleeper::EngineThread);
    if (driver_.advance()) continue;  // the second look
    if (!sleep_without_baton()) return;
  }
  set(word_, Sleeper::EngineThread);
  baton_.store(false, std::memory_order_seq_cst);
  notify_parked();
}

/// Somebody waits and can drive by itself; until it does, peers ring the engine thread.
void Progress::give_way() {
  set(word_, Sleeper::EngineThread);
  baton_.store(false, std::memory_order_seq_cst);
  notify_parked();
  const auto start = Clock::now();
  while (Clock::now() - start < kYield && waiters_.load() > 0 && !baton_.load()) ::sched_yield();
}

/// The engine thread sleeps and leaves the baton to whoever wants it meanwhile.
/// True: it holds the baton again. False: somebody else does.
bool Progress::sleep_without_baton() {
  auto wake_at = Clock::now() + kLongSleep;
  if (const auto due = driver_.next_deadline()) wake_at = std::min(wake_at, *due);
  engine_fds_.clear();
  engine_fds_.push_back({.fd = engine_bell_, .events = POLLIN, .revents = 0});
  driver_.watch(engine_fds_);
  engine_sleeps_until_ns_.store(wake_at.time_since_epoch().count());
  baton_.store(false, std::memory_order_seq_cst);
  notify_parked();
  auto releases = releases_.load(std::memory_order_relaxed);
  for (;;) {
    const int ready = wait_for(engine_fds_, wake_at);
    if (ready > 0 && engine_fds_.front().revents != 0) drain(engine_bell_);
    const auto now_releases = releases_.load(std::memory_order_relaxed);
    const bool user_threads_drive = now_releases != releases || baton_.load();
    const bool stay = linger_.exchange(false) || (ready == 0 && lingering_ && user_threads_drive);
    if (!stay) break;
    lingering_ = true;
    driver_.pulse();
    releases = now_releases;
    wake_at = Clock::now() + kLinger;
    engine_sleeps_until_ns_.store(wake_at.time_since_epoch().count());
  }
  lingering_ = false;
  if (!acquire()) return false;
  set(word_, Sleeper::Nobody);
  driver_.woken(engine_fds_.data() + 1, engine_fds_.size() - 1);
  return true;
}

}  // namespace rueda

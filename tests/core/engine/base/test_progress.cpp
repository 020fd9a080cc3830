/// Who drives: what is left behind when the progress lock changes hands.

#include "engine/base/progress.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Does one piece of work for each that was put, and waits for a descriptor when it is told to.
class ScriptedDriver final : public Driver {
 public:
  bool advance() override {
    if (!news.exchange(false)) return false;
    ++advanced;
    return true;
  }
  [[nodiscard]] bool busy() const override {
    if (last_look) last_look();
    return false;
  }
  [[nodiscard]] bool alerted() const override { return news; }
  [[nodiscard]] bool in_operation() const override { return false; }
  [[nodiscard]] bool awaits_descriptors() const override { return awaits; }
  [[nodiscard]] std::optional<TimePoint> next_deadline() const override { return std::nullopt; }
  void watch(std::vector<pollfd>& fds) const override {
    if (awaits) fds.push_back({.fd = data.get(), .events = POLLIN, .revents = 0});
  }
  void pulse() noexcept override {}
  void woken(const pollfd* fds, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      if (fds[i].revents == 0) continue;
      if (awaits.exchange(false)) arrived.set_value();
    }
  }

  std::atomic<bool> news{false};
  std::atomic<int> advanced{0};
  std::atomic<bool> awaits{false};
  std::promise<void> arrived;
  Fd data{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::function<void()> last_look;  // in busy(): the releasing thread has looked for the last time
};

TEST(Progress, what_comes_after_the_last_look_is_done_without_an_engine_thread) {
  ScriptedDriver driver;
  BellWord word{};
  Progress progress(driver, word, -1, -1);
  progress.poke();  // a second release soon after this one does not look again by itself
  driver.last_look = [&] {
    driver.last_look = nullptr;
    driver.news = true;  // another thread, which finds the progress lock taken
    std::thread([&] { progress.poke(); }).join();
  };
  progress.poke();
  EXPECT_EQ(driver.advanced, 1);
}

/// An engine thread that sleeps.
struct Sleeping {
  explicit Sleeping(ScriptedDriver& driver) : progress(driver, word, engine.get(), waiter.get()) {
    thread = std::jthread([this](const std::stop_token& stop) { progress.run(stop); });
    const auto limit = Clock::now() + seconds(10);
    while (word.sleeper != static_cast<std::uint32_t>(Sleeper::EngineThread) &&
           Clock::now() < limit) {
      std::this_thread::yield();
    }
  }
  ~Sleeping() {
    thread.request_stop();
    progress.stop();
  }
  BellWord word{};
  Fd engine{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Fd waiter{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Progress progress;
  std::jthread thread;
};

TEST(Progress, the_engine_thread_watches_descriptors_that_matter_since_it_fell_asleep) {
  ScriptedDriver driver;
  Sleeping rank(driver);
  std::this_thread::sleep_for(milliseconds(20));  // likely in ppoll by then
  int looks =
      0;  // until() asks twice before it drives; then this thread leaves with work under way
  rank.progress.until([&] { return ++looks > 2 && (driver.awaits = true); },
                      Clock::now() + seconds(10));
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(driver.data.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  EXPECT_EQ(driver.arrived.get_future().wait_for(seconds(5)), std::future_status::ready);
}

TEST(SpinWait, ends_after_a_time_and_stays_at_its_end_until_something_moves) {
  SpinWait spin(2);
  const auto deadline = Clock::now() + seconds(60);
  int waits = 0;
  while (spin.wait() && Clock::now() < deadline) ++waits;
  EXPECT_GE(waits, 2);  // the pauses, at least
  EXPECT_FALSE(spin.wait());
  spin.reset();
  EXPECT_TRUE(spin.wait());
}

TEST(SpinWait, cannot_tell_before_it_has_yielded) {
  SpinWait spin(2);
  EXPECT_EQ(spin.shared(), std::nullopt);
  EXPECT_TRUE(spin.wait() && spin.wait());
  EXPECT_EQ(spin.shared(), std::nullopt);
  static_cast<void>(spin.wait());
  EXPECT_NE(spin.shared(), std::nullopt);
}

TEST(Pauses, become_fewer_while_others_want_the_core_and_as_many_as_ever_when_nobody_does) {
  Pauses pauses;
  EXPECT_EQ(pauses.count(), Pauses::kMost);
  pauses.learn(true);
  EXPECT_EQ(pauses.count(), Pauses::kMost / 2);
  for (int i = 0; i < 10; ++i) pauses.learn(true);
  EXPECT_EQ(pauses.count(), 0);
  pauses.learn(std::nullopt);  // the others were there already
  EXPECT_EQ(pauses.count(), 0);
  pauses.learn(false);
  EXPECT_EQ(pauses.count(), Pauses::kMost);
  pauses.learn(std::nullopt);
  EXPECT_EQ(pauses.count(), Pauses::kMost);
}

TEST(SpinWait, sees_that_another_thread_wants_its_core) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  int core = 0;
  while (!CPU_ISSET(core, &mine)) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  std::atomic<bool> over{false};
  std::atomic<int> pinned{0};
  const auto on_one_core = [&](const auto& body) {
    return std::thread([&, body] {
      if (::sched_setaffinity(0, sizeof one, &one) == 0) ++pinned;
      body();
    });
  };
  auto other = on_one_core([&] {
    while (!over) {  // works a little whenever it may
      const auto end = Clock::now() + std::chrono::microseconds(20);
      while (Clock::now() < end) {
      }
      ::sched_yield();
    }
  });
  bool shared = false;
  auto waiting = on_one_core([&] {
    const auto deadline = Clock::now() + seconds(60);
    while (!shared && Clock::now() < deadline) {
      SpinWait spin(0);
      while (!spin.shared().value_or(false) && spin.wait()) {
      }
      shared = spin.shared().value_or(false);
    }
    over = true;
  });
  waiting.join();
  other.join();
  EXPECT_EQ(pinned, 2);
  EXPECT_TRUE(shared);
}

}  // namespace
}  // namespace farandole

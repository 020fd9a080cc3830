// Doorbells: who is rung, how often, and that no wake-up is lost.
#include "transport/doorbell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <thread>
#include <vector>

#include "transport/fd.h"

namespace farandole {
namespace {

/// How often the bell was rung since the last look.
std::uint64_t rings(const Fd& fd) {
  std::uint64_t count = 0;
  return ::read(fd.get(), &count, sizeof count) == sizeof count ? count : 0;
}

struct Bells {
  BellWord word{};
  Fd engine{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Fd waiter{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  [[nodiscard]] Doorbell doorbell() { return {&word, engine.get(), waiter.get()}; }
  void sleep_as(Sleeper who) { word.sleeper.store(static_cast<std::uint32_t>(who)); }
};

TEST(Doorbell, NobodyIsRungWhileTheRankIsAwake) {
  Bells bells;
  bells.doorbell().ring();
  EXPECT_EQ(rings(bells.engine), 0U);
  EXPECT_EQ(rings(bells.waiter), 0U);
}

TEST(Doorbell, WhoeverSleepsIsRungOnceAndTheWordIsCleared) {
  Bells bells;
  bells.sleep_as(Sleeper::EngineThread);
  bells.doorbell().ring();
  bells.doorbell().ring();
  EXPECT_EQ(rings(bells.engine), 1U);
  bells.sleep_as(Sleeper::Waiter);
  bells.doorbell().ring();
  EXPECT_EQ(rings(bells.waiter), 1U);
  EXPECT_EQ(rings(bells.engine), 0U);
  EXPECT_EQ(bells.word.sleeper.load(), 0U);
}

TEST(Doorbell, AWordThatMakesNoSenseRingsNobody) {
  Bells bells;
  bells.word.sleeper.store(77);
  bells.doorbell().ring();
  EXPECT_EQ(rings(bells.engine) + rings(bells.waiter), 0U);
  Doorbell().ring();
}

TEST(Doorbell, OfManyRingersOneWrites) {
  Bells bells;
  bells.sleep_as(Sleeper::Waiter);
  std::vector<std::thread> ringers;
  for (int i = 0; i < 4; ++i) ringers.emplace_back([&] { bells.doorbell().ring(); });
  for (std::thread& ringer : ringers) ringer.join();
  EXPECT_EQ(rings(bells.waiter), 1U);
}

TEST(Doorbell, NoWakeUpIsLostBetweenLookingAndSleeping) {
  Bells bells;
  std::atomic<int> published{0};
  constexpr int kRounds = 5000;
  std::atomic<int> seen{0};
  std::thread ringer([&] {
    for (int i = 1; i <= kRounds; ++i) {
      published.store(i);
      bells.doorbell().ring();
      while (seen.load() < i) std::this_thread::yield();
    }
  });
  bool lost = false;
  for (int i = 1; i <= kRounds; ++i) {
    while (published.load() < i) {
      bells.sleep_as(Sleeper::EngineThread);
      if (published.load() >= i) break;
      pollfd bell{bells.engine.get(), POLLIN, 0};
      if (!lost && ::poll(&bell, 1, 30000) == 0) lost = true;  // go on, so that the ringer ends
      (void)rings(bells.engine);
    }
    seen.store(i);
  }
  ringer.join();
  EXPECT_FALSE(lost);
}

}  // namespace
}  // namespace farandole

// The shared-memory backend with ranks as threads: any mix of operations, ranks that run ahead,
// counters that wrap around, sleeping ranks that must be woken.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>

#include "backends/shm/arena.h"
#include "shm_play.h"

namespace farandole {
namespace {

using testing::play;
using testing::ScriptedRank;
using testing::ShmWorld;
using testing::succeeded;
using testing::Wait;
using Bytes = std::vector<std::byte>;

/// Slots so small that the operations of a script take all paths, with many chunks.
constexpr ShmTuning kTiny{.small_bytes = 256, .chunk_bytes = 192};

TEST(Shm, AnyMixOfOperationsIsSafeWhileRanksRunAhead) {
  unsigned seed = 1;
  for (const int size : {1, 2, 3, 4, 8}) {
    play({.size = size, .tuning = kTiny}, {.seed = seed++, .operations = 100});
  }
  for (const int size : {2, 3}) {
    play({.size = size}, {.seed = seed++, .operations = 20, .most_bytes = 200000});
  }
}

/// Also with as few slots as many members have, and with numbers that do not divide 2^32.
constexpr std::array<std::size_t, 4> kRings{3, 5, 7, 8};

TEST(Shm, AnyMixOfOperationsIsSafeWithAnyNumberOfSlots) {
  unsigned seed = 300;
  for (const std::size_t slots : kRings) {
    ShmTuning tuning = kTiny;
    tuning.slots = slots;
    for (const int size : {2, 4}) {
      play({.size = size, .tuning = tuning}, {.seed = seed++, .operations = 60});
    }
  }
}

TEST(Shm, CountersMayWrapAround) {
  for (const std::uint32_t before_wrap : {1U, 2U, 3U, 100U, 1000U}) {
    for (const std::size_t slots : kRings) {
      ShmTuning tuning = kTiny;
      tuning.slots = slots;
      play({.size = slots == 5 ? 4 : 3, .tuning = tuning, .first_sequence = 0U - before_wrap},
           {.seed = before_wrap, .operations = 40});
    }
  }
  // Half-way round, where signed numbers overflow.
  play({.size = 3, .tuning = kTiny, .first_sequence = 0x7FFFFFF0U}, {.seed = 9});
}

/// 2^32 is no multiple of 3, 5 or 7, and what is under way must not share a slot.
TEST(Shm, ChunksUnderWayHaveSlotsOfTheirOwnAlsoWhereCountersWrap) {
  for (const std::size_t slots : kRings) {
    ShmTuning tuning = kTiny;
    tuning.slots = slots;
    const ShmWorld world({.size = 2, .first_sequence = 0U - 20});
    ShmArena arena(world.members(0), world.shm_members(), ShmChannelUse{}, tuning);
    std::deque<const std::byte*> under_way;
    for (const std::size_t chunks : {1, 2, 3, 5, 1, 4, 7, 1, 9, 6}) {
      const auto taken = arena.take_chunks(chunks);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const std::byte* const slot = arena.slot(0, taken, chunk);
        ASSERT_EQ(std::ranges::count(under_way, slot), 0) << slots << " slots";
        under_way.push_back(slot);
        if (under_way.size() == slots) under_way.pop_front();
      }
    }
  }
}

TEST(Shm, ARankThatSleepsIsAlwaysRung) {
  unsigned seed = 100;
  for (const int size : {2, 3, 5}) {
    play({.size = size, .tuning = kTiny, .wait = Wait::Sleep},
         {.seed = seed++, .operations = 150, .pause_one_in = 2});
  }
}

TEST(Shm, BackendsMadeAnewGoOnWhereTheFlagsStand) {
  const ShmWorld world({.size = 3, .tuning = kTiny});
  for (unsigned round = 0; round < 5; ++round) {
    world.run([&](int rank, ShmBackend& backend) {
      ScriptedRank scripted(
          {.seed = 50 + round, .operations = 20}, rank, 3, backend,
          [&](const std::vector<Operation*>& operations) { return world.drive(rank, operations); });
      EXPECT_EQ(scripted.run(), "");
    });
  }
}

TEST(Shm, NobodyLeavesABarrierBeforeEverybodyHasEntered) {
  const ShmWorld world({.size = 4});
  std::atomic<int> entered{0};
  world.run([&](int rank, ShmBackend& backend) {
    for (int round = 1; round <= 200; ++round) {
      entered.fetch_add(1, std::memory_order_relaxed);
      ASSERT_TRUE(succeeded(world.drive(rank, backend.start(Barrier{}))));
      ASSERT_GE(entered.load(std::memory_order_relaxed), 4 * round);
      ASSERT_TRUE(succeeded(world.drive(rank, backend.start(Barrier{}))));
    }
  });
}

TEST(Shm, TheRootOfABroadcastRunsAheadNoFurtherThanItsSlots) {
  const ShmWorld world({.size = 2, .tuning = kTiny});
  const auto root = world.backend(0);
  const auto other = world.backend(1);
  Bytes in(192 * (kShmSlots + 2), std::byte{7});
  Bytes out(in.size());
  const auto sending = root->start(Broadcast{in, in, 0});
  for (std::uint32_t chunk = 0; chunk < kShmSlots; ++chunk) {
    ASSERT_EQ(*sending->step(), Step::Advanced);
  }
  ASSERT_EQ(*sending->step(), Step::Blocked);
  EXPECT_EQ(sending->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
  const auto receiving = other->start(Broadcast{{}, out, 0});
  ASSERT_EQ(*receiving->step(), Step::Advanced);
  ASSERT_EQ(*sending->step(), Step::Advanced);
  ASSERT_EQ(*sending->step(), Step::Blocked);
  while (*receiving->step() == Step::Advanced) {
  }
  EXPECT_EQ(receiving->waiting_for(), std::vector<Rank>{ShmWorld::global(0)});
  ASSERT_EQ(*sending->step(), Step::Done);
  ASSERT_EQ(*receiving->step(), Step::Done);
  EXPECT_EQ(out, in);
}

TEST(Shm, TransfersOfOnePairCompleteInOrderAndTheOtherDirectionIsFree) {
  const ShmWorld world({.size = 2});
  world.run([&](int rank, ShmBackend& backend) {
    const std::array<std::size_t, 6> sizes{0, 1, 300000, 0, 131072, 3};
    std::vector<Bytes> in;
    std::vector<Bytes> out;
    std::vector<std::unique_ptr<Operation>> operations;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      out.emplace_back(sizes[i], static_cast<std::byte>(10 * rank + static_cast<int>(i)));
      in.emplace_back(sizes[i]);
    }
    for (const Bytes& bytes : out) operations.push_back(backend.send(1 - rank, bytes));
    for (Bytes& bytes : in) operations.push_back(backend.recv(1 - rank, bytes));
    ASSERT_TRUE(succeeded(world.drive(rank, testing::each_of(operations))));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(in[i],
                Bytes(sizes[i], static_cast<std::byte>(10 * (1 - rank) + static_cast<int>(i))));
    }
  });
}

TEST(Shm, ATransferGivenUpHalfWayFailsTheNextOne) {
  const ShmWorld world({.size = 2});
  const auto backend = world.backend(0);
  const Bytes data(300000);
  {
    const auto abandoned = backend->send(1, data);
    ASSERT_EQ(*abandoned->step(), Step::Advanced);
  }
  const auto next = backend->send(1, data);
  const auto step = next->step();
  ASSERT_FALSE(static_cast<bool>(step));
  EXPECT_EQ(step.error().peer, ShmWorld::global(1));
}

TEST(Shm, ARingCounterThatMakesNoSenseIsAnError) {
  const ShmWorld world({.size = 2});
  const auto backend = world.backend(0);
  Bytes data(100);
  world.view(1).pipe_to(0).head->written.store(0x40000000);
  EXPECT_FALSE(static_cast<bool>(backend->recv(1, data)->step()));
  world.view(0).pipe_to(1).head->read.store(5);
  EXPECT_FALSE(static_cast<bool>(backend->send(1, data)->step()));
}

TEST(Shm, MembersThatDoNotExistAreRefused) {
  const ShmWorld world({.size = 2});
  const auto backend = world.backend(0);
  Bytes data(8);
  for (const int member : {-1, 0, 2}) {
    EXPECT_FALSE(static_cast<bool>(backend->send(member, data)->step()));
    EXPECT_FALSE(static_cast<bool>(backend->recv(member, data)->step()));
  }
  EXPECT_FALSE(static_cast<bool>(backend->start(Broadcast{data, data, 2})->step()));
  EXPECT_FALSE(static_cast<bool>(backend->start(GatherPlan{})->step()));
}

TEST(Shm, ThePathDependsOnTheSizeAlone) {
  const ShmWorld world({.size = 2, .tuning = kTiny});
  const auto backend = world.backend(0);
  EXPECT_EQ(backend->path(Kind::Allreduce, 256), "shm.small");
  EXPECT_EQ(backend->path(Kind::Allreduce, 257), "shm.large");
}

}  // namespace
}  // namespace farandole

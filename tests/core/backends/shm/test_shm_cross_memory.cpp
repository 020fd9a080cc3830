// Members that read each other's memory, as threads of one process: results, and the ways back to
// the slots.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shm_play.h"
#include "transport/shm_layout.h"

namespace farandole {
namespace {

using testing::play;
using testing::ShmWorld;
using testing::succeeded;
using testing::Wait;
using Bytes = std::vector<std::byte>;

/// Slots so small that a script takes all paths.
constexpr ShmTuning kTiny{.small_bytes = 256,
                          .chunk_bytes = 192,
                          .cross_memory_bytes = 1,
                          .cross_memory_broadcast_bytes = 1000000};
constexpr std::size_t kBytes = 1000;

Bytes content(int rank, std::size_t bytes) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + rank * 31 + 1);
  return made;
}

/// Emulators of other machines, and containers of old, refuse it even to the owner of the memory.
bool readable() {
  std::byte to{};
  std::byte from{1};
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1 && to == from;
}

/// One member of an allgather of `bytes` from each.
struct Gathering {
  Gathering(ShmBackend& backend, int rank, int size, std::size_t bytes = kBytes)
      : mine(content(rank, bytes)), all(static_cast<std::size_t>(size) * bytes) {
    GatherPlan plan;
    plan.in = {mine};
    for (int m = 0; m < size; ++m) {
      plan.out.push_back({std::span(all).subspan(static_cast<std::size_t>(m) * bytes, bytes)});
    }
    operation = backend.start(std::move(plan));
  }
  [[nodiscard]] bool right(int size) const {
    Bytes expected;
    for (int m = 0; m < size; ++m) {
      const Bytes part = content(m, all.size() / static_cast<std::size_t>(size));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    return all == expected;
  }
  /// As far as it goes alone.
  [[nodiscard]] Step step_on() const {
    Step last = Step::Advanced;
    while (last == Step::Advanced) {
      const auto step = operation->step();
      EXPECT_TRUE(static_cast<bool>(step)) << (step ? "" : step.error().what());
      last = step ? *step : Step::Done;
    }
    return last;
  }

  Bytes mine;
  Bytes all;
  std::unique_ptr<Operation> operation;
};

TEST(CrossMemory, AnyMixOfOperationsIsSafeWhileRanksRunAhead) {
  unsigned seed = 1;
  for (const int size : {2, 3, 4, 5}) {
    play({.size = size, .tuning = kTiny, .cross_memory = true},
         {.seed = seed++, .operations = 150});
  }
  play({.size = 2, .cross_memory = true}, {.seed = seed++, .operations = 20, .most_bytes = 300000});
  play({.size = 3, .cross_memory = true}, {.seed = seed++, .operations = 8, .most_bytes = 1500000});
}

TEST(CrossMemory, CountersMayWrapAround) {
  for (const std::uint32_t before_wrap : {1U, 2U, 3U, 50U}) {
    play({.size = 3, .tuning = kTiny, .first_sequence = 0U - before_wrap, .cross_memory = true},
         {.seed = before_wrap, .operations = 60});
  }
}

TEST(CrossMemory, ARankThatSleepsIsAlwaysRung) {
  unsigned seed = 100;
  for (const int size : {2, 3, 5}) {
    play({.size = size, .tuning = kTiny, .wait = Wait::Sleep, .cross_memory = true},
         {.seed = seed++, .operations = 150, .pause_one_in = 2});
  }
}

TEST(CrossMemory, ThePathSaysWhetherMemoryWasRead) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  for (const bool cross_memory : {false, true}) {
    const ShmWorld world({.size = 3, .tuning = kTiny, .cross_memory = cross_memory});
    world.run([&](int rank, ShmBackend& backend) {
      for (int round = 0; round < 3; ++round) {
        const Gathering gathering(backend, rank, 3);
        ASSERT_TRUE(succeeded(world.drive(rank, {gathering.operation.get()})));
        EXPECT_TRUE(gathering.right(3));
        const auto path = gathering.operation->path();
        EXPECT_EQ(path, cross_memory ? "shm.direct" : round == 0 ? "shm.large" : "");
      }
    });
  }
}

TEST(CrossMemory, OneRankThatNobodyMayReadKeepsAllOfThemToTheSlots) {
  const ShmWorld world({.size = 3, .tuning = kTiny, .cross_memory = true});
  world.view(1).card().state.store(0);
  world.run([&](int rank, ShmBackend& backend) {
    for (int round = 0; round < 3; ++round) {
      const Gathering gathering(backend, rank, 3);
      ASSERT_TRUE(succeeded(world.drive(rank, {gathering.operation.get()})));
      EXPECT_TRUE(gathering.right(3));
      EXPECT_EQ(gathering.operation->path(), round == 0 ? "shm.large" : "");
    }
  });
}

TEST(CrossMemory, AnotherNumberThanTheCardSaysIsAnotherProcess) {
  const ShmWorld world({.size = 2, .tuning = kTiny, .cross_memory = true});
  world.view(0).card().number[1] ^= 1;
  world.run([&](int rank, ShmBackend& backend) {
    const Gathering gathering(backend, rank, 2);
    ASSERT_TRUE(succeeded(world.drive(rank, {gathering.operation.get()})));
    EXPECT_TRUE(gathering.right(2));
    EXPECT_EQ(gathering.operation->path(), "shm.large");
  });
}

TEST(CrossMemory, MorePiecesThanASlotCanNameGoThroughTheSlots) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  const ShmWorld world({.size = 2, .tuning = kTiny, .cross_memory = true});
  world.run([&](int rank, ShmBackend& backend) {
    for (const std::size_t pieces : {3000U, 5000U, 40U}) {
      const Bytes mine = content(rank, pieces);
      Bytes all(2 * pieces);
      GatherPlan plan;
      plan.out.resize(2);
      // Rank 1 brings it in one piece: the others' number of pieces is nobody's affair.
      if (rank == 1) plan.in = {mine};
      for (std::size_t i = 0; rank == 0 && i < pieces; ++i) {
        plan.in.push_back(std::span(mine).subspan(i, 1));
      }
      for (std::size_t m = 0; m < 2; ++m)
        plan.out[m] = {std::span(all).subspan(m * pieces, pieces)};
      const auto operation = backend.start(std::move(plan));
      ASSERT_TRUE(succeeded(world.drive(rank, {operation.get()})));
      Bytes expected = content(0, pieces);
      const Bytes other = content(1, pieces);
      expected.insert(expected.end(), other.begin(), other.end());
      EXPECT_EQ(all, expected);
      EXPECT_EQ(operation->path(), pieces == 40 ? "" : pieces == 5000 ? "shm.large" : "shm.direct");
    }
  });
}

TEST(CrossMemory, MemoryThatTheKernelGivesToNobodyGoesThroughTheSlots) {
  const int secret = static_cast<int>(::syscall(SYS_memfd_secret, 0));
  if (secret < 0) GTEST_SKIP() << "this kernel has no memfd_secret: " << std::strerror(errno);
  const Fd file(secret);
  ASSERT_EQ(::ftruncate(secret, 4096), 0);
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::byte> source(static_cast<std::byte*>(memory), kBytes);
  const Bytes expected = content(0, kBytes);
  std::memcpy(source.data(), expected.data(), kBytes);
  const ShmWorld world({.size = 3, .tuning = kTiny, .cross_memory = true});
  world.run([&](int rank, ShmBackend& backend) {
    for (int round = 0; round < 2; ++round) {
      Bytes out(kBytes);
      const bool unreadable = round == 0;
      const std::span<const std::byte> in = unreadable ? source : std::span(expected);
      const auto operation =
          backend.start(Broadcast{rank == 0 ? in : std::span<const std::byte>(), out, 0});
      ASSERT_TRUE(succeeded(world.drive(rank, {operation.get()})));
      EXPECT_EQ(out, expected);
      EXPECT_EQ(operation->path(), unreadable ? "shm.large" : "shm.direct");
    }
  });
  ::munmap(memory, 4096);
}

TEST(CrossMemory, WhoReadsWhileTheOwnerGivesUpDoesNotComeToAnEnd) {
  const ShmWorld world({.size = 2, .tuning = kTiny, .cross_memory = true});
  const auto zero = world.backend(0);
  const auto one = world.backend(1);
  const Gathering slow(*zero, 0, 2);
  Gathering fast(*one, 1, 2);
  ASSERT_EQ(*slow.operation->step(), Step::Advanced);  // has given notice
  ASSERT_EQ(fast.step_on(), Step::Blocked);            // has read, and waits for the reader
  EXPECT_EQ(fast.operation->waiting_for(), std::vector<Rank>{ShmWorld::global(0)});
  publish_cause(world.view(1), Error{.message = "something else broke"});
  fast.operation.reset();
  std::fill(fast.mine.begin(), fast.mine.end(), std::byte{0xFF});  // used for something else
  EXPECT_EQ(slow.step_on(), Step::Blocked);
  EXPECT_EQ(slow.operation->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
}

/// An allgather whose members know all addresses before they begin.
struct KnownGatherings {
  KnownGatherings(const std::vector<std::unique_ptr<ShmBackend>>& backends, std::uint64_t skew = 0)
      : size(static_cast<int>(backends.size())) {
    const auto count = static_cast<std::size_t>(size);
    for (int rank = 0; rank < size; ++rank) inputs.push_back(content(rank, kBytes));
    outputs.assign(count, Bytes(count * kBytes));
    for (std::size_t rank = 0; rank < count; ++rank) {
      GatherPlan plan;
      plan.in = {inputs[rank]};
      for (std::size_t m = 0; m < count; ++m) {
        plan.out.push_back({std::span(outputs[rank]).subspan(m * kBytes, kBytes)});
        plan.theirs.push_back({skew + reinterpret_cast<std::uintptr_t>(inputs[m].data())});
      }
      operations.push_back(backends[rank]->start(std::move(plan)));
    }
  }
  [[nodiscard]] Step step_on(int rank) {
    Step last = Step::Advanced;
    while (last == Step::Advanced) {
      const auto step = operations[static_cast<std::size_t>(rank)]->step();
      EXPECT_TRUE(static_cast<bool>(step)) << (step ? "" : step.error().what());
      last = step ? *step : Step::Done;
    }
    return last;
  }
  [[nodiscard]] bool right(int rank) const {
    Bytes expected;
    for (int m = 0; m < size; ++m) {
      const Bytes part = content(m, kBytes);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    return outputs[static_cast<std::size_t>(rank)] == expected;
  }
  /// All members, until all are done.
  void run() {
    for (std::vector<bool> done(operations.size()); std::ranges::count(done, false) > 0;) {
      for (int rank = 0; rank < size; ++rank) {
        if (!done[static_cast<std::size_t>(rank)]) {
          done[static_cast<std::size_t>(rank)] = step_on(rank) == Step::Done;
        }
      }
    }
  }

  int size;
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  std::vector<std::unique_ptr<Operation>> operations;
};

std::vector<std::unique_ptr<ShmBackend>> backends_of(const ShmWorld& world) {
  std::vector<std::unique_ptr<ShmBackend>> backends;
  for (int rank = 0; rank < world.size(); ++rank) backends.push_back(world.backend(rank));
  return backends;
}

TEST(CrossMemory, MemoryOfKnownAddressesIsReadBeforeItsOwnersHaveBegun) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  const ShmWorld world({.size = 3, .tuning = kTiny, .cross_memory = true});
  const auto backends = backends_of(world);
  for (int round = 0; round < 4; ++round) {
    KnownGatherings known(backends);
    EXPECT_EQ(known.step_on(1), Step::Blocked);
    // Whether all may read all has to be said once.
    EXPECT_EQ(known.right(1), round > 0);
    known.run();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(known.right(rank));
      EXPECT_EQ(known.operations[static_cast<std::size_t>(rank)]->path(), "shm.direct");
    }
  }
}

TEST(CrossMemory, OwnersOfKnownAddressesWaitForTheirReaders) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  const ShmWorld world({.size = 2, .tuning = kTiny, .cross_memory = true});
  const auto backends = backends_of(world);
  KnownGatherings(backends).run();
  KnownGatherings known(backends);
  EXPECT_EQ(known.step_on(0), Step::Blocked);
  EXPECT_EQ(known.operations[0]->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
  EXPECT_EQ(known.step_on(1), Step::Done);
  EXPECT_EQ(known.step_on(0), Step::Done);
  EXPECT_TRUE(known.right(0));
  EXPECT_TRUE(known.right(1));
}

TEST(CrossMemory, KnownAddressesWhereNobodyMayReadGoThroughTheSlots) {
  const ShmWorld world({.size = 3, .tuning = kTiny, .cross_memory = true});
  world.view(1).card().state.store(0);
  const auto backends = backends_of(world);
  for (int round = 0; round < 2; ++round) {
    KnownGatherings known(backends);
    known.run();
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(known.right(rank));
    EXPECT_EQ(known.operations[0]->path(), round == 0 ? "shm.large" : "");
  }
}

TEST(CrossMemory, KnownAddressesThatCannotBeReadGoThroughTheSlots) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  const ShmWorld world({.size = 3, .tuning = kTiny, .cross_memory = true});
  const auto backends = backends_of(world);
  KnownGatherings(backends).run();
  KnownGatherings known(backends, std::uint64_t{1} << 47);  // of the kernel
  known.run();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(known.right(rank));
    EXPECT_EQ(known.operations[static_cast<std::size_t>(rank)]->path(), "shm.large");
  }
  KnownGatherings again(backends);
  again.run();
  EXPECT_EQ(again.operations[0]->path(), "shm.direct");
}

TEST(CrossMemory, WhatWasReadOfAnOwnerThatNeverBeganDoesNotCount) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  const ShmWorld world({.size = 2, .tuning = kTiny, .cross_memory = true});
  const auto backends = backends_of(world);
  KnownGatherings(backends).run();
  KnownGatherings known(backends);
  publish_cause(world.view(1), Error{.message = "something else broke"});
  std::ranges::fill(known.inputs[1], std::byte{0xFF});  // used for something else
  EXPECT_EQ(known.step_on(0), Step::Blocked);
  EXPECT_EQ(known.operations[0]->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
  known.run();  // only here: an owner that has failed does not go on
  for (const auto& operation : known.operations) EXPECT_EQ(operation->path(), "shm.large");
}

TEST(CrossMemory, ANoticeThatDoesNotFitIsAnErrorThatNamesTheRank) {
  if (!readable()) GTEST_SKIP() << "no process may read its own memory this way here";
  const ShmWorld world({.size = 2, .tuning = kTiny, .cross_memory = true});
  const auto zero = world.backend(0);
  const auto one = world.backend(1);
  Bytes out(kBytes);
  const Gathering gathering(*zero, 0, 2);
  const auto broadcast = one->start(Broadcast{{}, out, 0});  // out of step
  ASSERT_EQ(*broadcast->step(), Step::Advanced);
  ASSERT_EQ(*gathering.operation->step(), Step::Advanced);
  auto step = gathering.operation->step();
  while (step && *step == Step::Advanced) step = gathering.operation->step();
  ASSERT_FALSE(static_cast<bool>(step));
  EXPECT_EQ(step.error().peer, ShmWorld::global(1));
}

}  // namespace
}  // namespace farandole

// Tensors on devices by NCCL: engines on threads, a device for each, over the fake driver and NCCL.

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>

#include "fake_nccl.h"
#include "framework.h"

namespace farandole::testing {
namespace {

const bool kFourDevices = ::setenv("FAKE_CUDA_DEVICES", "4", 1) == 0;

template <typename T>
std::vector<T> whole(std::size_t count, Rank rank) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11 + 1);
  }
  return values;
}

Shape of(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

std::uint64_t batches(Engine& engine, const std::string& path) {
  const auto paths = engine.paths();
  const auto found = paths.find(path);
  return found == paths.end() ? 0 : found->second.operations;
}

class Nccl : public ::testing::TestWithParam<Groups> {
 protected:
  Nccl() { fakeNcclFaults("", "", ""); }
  Cluster cluster_{GetParam(), with_fake_device()};
};

TEST_P(Nccl, Reduces) {
  for (const std::size_t count : {0UL, 1UL, 1000UL, 300000UL}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max, ReduceOp::Min}) {
      cluster_.each([&](Rank rank, Engine& engine) {
        Framework framework(rank);
        const auto mine = whole<float>(count, rank);
        std::vector<float> expected = whole<float>(count, 0);
        for (Rank other = 1; other < cluster_.size(); ++other) {
          const auto theirs = whole<float>(count, other);
          for (std::size_t i = 0; i < count; ++i) {
            if (op == ReduceOp::Max) expected[i] = std::max(expected[i], theirs[i]);
            if (op == ReduceOp::Min) expected[i] = std::min(expected[i], theirs[i]);
            if (op == ReduceOp::Sum || op == ReduceOp::Average) expected[i] += theirs[i];
          }
        }
        if (op == ReduceOp::Average) {
          for (float& value : expected) value /= static_cast<float>(cluster_.size());
        }
        std::byte* const in = framework.tensor(mine);
        std::byte* const out = framework.allocate(count * 4);
        run(engine, {.name = "t",
                     .tensors = {on_device(framework, in, out, DType::Float32, of(count))},
                     .op = op});
        const auto got = framework.read<float>(out, count);
        for (std::size_t i = 0; i < count; ++i) ASSERT_FLOAT_EQ(got[i], expected[i]);
        EXPECT_EQ(framework.read<float>(in, count), mine);
      });
    }
  }
  cluster_.each([](Rank, Engine& engine) { EXPECT_GT(batches(engine, "nccl"), 0U); });
}

TEST_P(Nccl, ScalesAndRoundsAsASumDoes) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    std::byte* const tensor = framework.tensor(std::vector<double>(10, rank + 1.0));
    run(engine, {.name = "t",
                 .tensors = {on_device(framework, tensor, tensor, DType::Float64, {10})},
                 .prescale = 0.5,
                 .postscale = 6.0});
    const int size = cluster_.size();
    EXPECT_EQ(framework.read<double>(tensor, 10),
              std::vector<double>(10, 3.0 * size * (size + 1) / 2));
  });
}

TEST_P(Nccl, PacksSmallTensors) {
  constexpr int kTensors = 30;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    std::vector<std::byte*> memory;
    Submission group{.name = "g", .grouped = true};
    for (int i = 0; i < kTensors; ++i) {
      const auto count = static_cast<std::size_t>(i == 7 ? 100000 : i * 13);
      memory.push_back(framework.tensor(std::vector<float>(count, static_cast<float>(i + rank))));
      group.tensors.push_back(
          on_device(framework, memory.back(), memory.back(), DType::Float32, of(count)));
    }
    run(engine, std::move(group));
    for (int i = 0; i < kTensors; ++i) {
      const auto count = static_cast<std::size_t>(i == 7 ? 100000 : i * 13);
      const int size = cluster_.size();
      EXPECT_EQ(framework.read<float>(memory[static_cast<std::size_t>(i)], count),
                std::vector<float>(count, static_cast<float>(i * size + size * (size - 1) / 2)));
    }
  });
}

TEST_P(Nccl, ComesAfterWhatTheStreamHasAndBeforeWhatComes) {
  constexpr std::size_t kCount = 20000;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount));
    float expected = 0.0F;
    for (int round = 0; round < 5; ++round) {
      framework.add(reinterpret_cast<FakeCudaAddress>(tensor), kCount,
                    static_cast<float>(rank + 1));
      run(engine, {.name = "t",
                   .tensors = {on_device(framework, tensor, tensor, DType::Float32, of(kCount))},
                   .op = ReduceOp::Max});
      expected += static_cast<float>(cluster_.size());
    }
    EXPECT_EQ(framework.read<float>(tensor, kCount), std::vector<float>(kCount, expected));
  });
}

TEST_P(Nccl, GathersBroadcastsScattersAndSwaps) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    const auto size = static_cast<std::size_t>(cluster_.size());
    const std::size_t own = static_cast<std::size_t>(rank) * 1000 + 5;
    std::byte* const rows = framework.tensor(whole<std::int16_t>(own, rank));
    auto work =
        run(engine, {.kind = Kind::Allgather,
                     .name = "g",
                     .tensors = {on_device(framework, rows, nullptr, DType::Int16, of(own))}});
    ASSERT_NE(work, nullptr);
    std::vector<std::int16_t> gathered;
    for (Rank other = 0; other < cluster_.size(); ++other) {
      const auto theirs = whole<std::int16_t>(static_cast<std::size_t>(other) * 1000 + 5, other);
      gathered.insert(gathered.end(), theirs.begin(), theirs.end());
    }
    std::byte* const all = framework.allocate(gathered.size() * 2);
    Output& output = work->outputs.front();
    ASSERT_TRUE(static_cast<bool>(output.device->deliver(
        std::move(output.buffer), gathered.size() * 2, all, framework.stream())));
    EXPECT_EQ(framework.read<std::int16_t>(all, gathered.size()), gathered);

    std::byte* const bytes = framework.tensor(whole<std::uint8_t>(777, rank));
    run(engine, {.kind = Kind::Broadcast,
                 .name = "b",
                 .tensors = {on_device(framework, bytes, bytes, DType::UInt8, {777})},
                 .root = cluster_.size() - 1});
    EXPECT_EQ(framework.read<std::uint8_t>(bytes, 777),
              whole<std::uint8_t>(777, cluster_.size() - 1));

    const std::size_t scattered = 10 * size + 1;
    std::byte* const parts =
        framework.tensor(std::vector<float>(scattered, 1.0F + static_cast<float>(rank)));
    const std::size_t mine = rank == 0 ? 11 : 10;
    std::byte* const part = framework.allocate(mine * 4);
    run(engine, {.kind = Kind::Reducescatter,
                 .name = "r",
                 .tensors = {on_device(framework, parts, part, DType::Float32, of(scattered))}});
    EXPECT_EQ(framework.read<float>(part, mine),
              std::vector<float>(mine, static_cast<float>(size * (size + 1) / 2)));

    std::byte* const going =
        framework.tensor(std::vector<float>(size * 3, static_cast<float>(rank)));
    work = run(engine,
               {.kind = Kind::Alltoall,
                .name = "a",
                .tensors = {on_device(framework, going, nullptr, DType::Float32, of(size * 3))}});
    ASSERT_NE(work, nullptr);
    Output& come = work->outputs.front();
    std::byte* const came = framework.allocate(size * 12);
    ASSERT_TRUE(static_cast<bool>(
        come.device->deliver(std::move(come.buffer), size * 12, came, framework.stream())));
    std::vector<float> expected;
    for (std::size_t m = 0; m < size; ++m)
      expected.insert(expected.end(), 3, static_cast<float>(m));
    EXPECT_EQ(framework.read<float>(came, size * 3), expected);
    EXPECT_EQ(batches(engine, "staged." + std::string()), 0U);
  });
}

TEST_P(Nccl, LeavesToTheHostWhatItCannotDo) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    std::byte* const tensor = framework.tensor(std::vector<std::int16_t>(100, 2));
    run(engine,
        {.name = "t", .tensors = {on_device(framework, tensor, tensor, DType::Int16, {100})}});
    EXPECT_EQ(framework.read<std::int16_t>(tensor, 100),
              std::vector<std::int16_t>(100, static_cast<std::int16_t>(2 * cluster_.size())));
    EXPECT_EQ(batches(engine, "nccl"), 0U);
  });
}

TEST_P(Nccl, TakesZerosOfARankThatHasJoined) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    std::byte* const tensor = framework.tensor(std::vector<float>(1000, 1.0F));
    const auto once = [&] {
      run(engine, {.name = "t",
                   .tensors = {on_device(framework, tensor, tensor, DType::Float32, {1000})},
                   .op = ReduceOp::Sum});
    };
    once();
    if (rank != 0) {
      once();
      EXPECT_EQ(
          framework.read<float>(tensor, 1000),
          std::vector<float>(1000, static_cast<float>(cluster_.size() * (cluster_.size() - 1))));
    }
    run(engine, {.kind = Kind::Join});
    EXPECT_GE(batches(engine, "nccl"), 1U);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Nccl,
                         ::testing::Values(Groups{{0, 1}}, Groups{{0}, {1}}, Groups{{0, 1}, {2}},
                                           Groups{{0, 1}, {2, 3}}),
                         world_name);

class NcclChoice : public ::testing::Test {
 protected:
  NcclChoice() { fakeNcclFaults("", "", ""); }

  /// One allreduce of each rank; its error. `device`: of the rank.
  static std::string once(Engine& engine, int device) {
    Framework framework(device);
    std::byte* const tensor = framework.tensor(std::vector<float>(100, 1.0F));
    framework.synchronize();
    auto handle = engine.submit(
        {.name = "t", .tensors = {on_device(framework, tensor, tensor, DType::Float32, {100})}});
    if (!handle) return handle.error().what();
    const auto work = finish(engine, *handle);
    framework.synchronize();
    return work->error ? work->error->what() : "";
  }
};

TEST_F(NcclChoice, RanksOnOneDeviceAreStaged) {
  Cluster cluster({{0, 1}}, with_fake_device());
  cluster.each([&](Rank, Engine& engine) {
    EXPECT_EQ(once(engine, 0), "");
    EXPECT_EQ(batches(engine, "nccl"), 0U);
  });
}

TEST_F(NcclChoice, OneRankThatDoesNotWantItStagesAll) {
  EngineOptions options = with_fake_device();
  options.devices[Kind::Allreduce] = "STAGED";
  Cluster cluster({{0, 1}}, options);
  cluster.each([&](Rank rank, Engine& engine) {
    EXPECT_EQ(once(engine, rank), "");
    EXPECT_EQ(batches(engine, "nccl"), 0U);
  });
}

TEST_F(NcclChoice, WhoAsksForItGetsNothingElse) {
  EngineOptions options = with_fake_device();
  options.devices[Kind::Allreduce] = "NCCL";
  Cluster cluster({{0, 1}}, options);
  cluster.each([&](Rank, Engine& engine) {
    const std::string error = once(engine, 0);
    EXPECT_NE(error.find("NCCL was asked for"), std::string::npos) << error;
    EXPECT_NE(error.find("ranks 0 and 1 share a device"), std::string::npos) << error;
  });
}

TEST_F(NcclChoice, ARankAloneGetsItOnlyIfItAsks) {
  for (const std::string wish : {"", "NCCL"}) {
    EngineOptions options = with_fake_device();
    options.devices[Kind::Allreduce] = wish;
    Cluster cluster({{0}}, options);
    cluster.each([&](Rank rank, Engine& engine) {
      EXPECT_EQ(once(engine, rank), "");
      EXPECT_EQ(batches(engine, "nccl"), wish.empty() ? 0U : 1U);
    });
  }
}

/// NCCL tells nobody when it has put an operation on the stream: the engine has to ask again. Here
/// nothing else wakes it.
TEST_F(NcclChoice, WhatCountsItsRowsFirstAsksAgain) {
  EngineOptions options = with_fake_device();
  options.devices[Kind::Allgather] = options.devices[Kind::Alltoall] = "NCCL";
  Cluster cluster({{0}}, options);
  cluster.each([&](Rank, Engine& engine) {
    Framework framework(0);
    std::byte* const rows = framework.tensor(whole<float>(5, 0));
    for (const Kind kind : {Kind::Allgather, Kind::Alltoall}) {
      Submission submission{
          .kind = kind,
          .name = "rows",
          .tensors = {on_device(framework, rows, nullptr, DType::Float32, of(5))}};
      if (kind == Kind::Alltoall) submission.tensors.front().splits = {5};
      EXPECT_NE(run(engine, std::move(submission)), nullptr);
    }
    EXPECT_EQ(batches(engine, "nccl"), 2U);
  });
}

TEST_F(NcclChoice, AnErrorOfNcclIsEverybodys) {
  Cluster cluster({{0, 1}, {2}}, with_fake_device());
  cluster.each([&](Rank rank, Engine& engine) { EXPECT_EQ(once(engine, rank), ""); });
  fakeNcclFaults("", "", "ncclAllReduce:2:6");
  cluster.each([&](Rank rank, Engine& engine) {
    const std::string error = once(engine, rank);
    EXPECT_NE(error.find("NCCL has failed"), std::string::npos) << error;
  });
}

TEST_F(NcclChoice, ASurvivorOfALostRankIsNeverStuck) {
  Cluster cluster({{0}, {1}, {2}}, with_fake_device());
  cluster.each([&](Rank rank, Engine& engine) { EXPECT_EQ(once(engine, rank), ""); });
  fakeNcclFaults("", "ncclAllReduce:1+", "");
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      cluster.cut(2);
      engine.shutdown({.reason = wire::Departure::Reason::Failed, .text = "it died"});
      return;
    }
    const auto began = Clock::now();
    EXPECT_NE(once(engine, rank), "");  // and its stream goes on
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(15));
  });
}

TEST_F(NcclChoice, NothingStaysBehind) {
  FakeNcclCounters counters;
  FakeCudaCounters before;
  fakeCudaCount(&before);
  {
    Cluster cluster({{0, 1}}, with_fake_device());
    cluster.each([&](Rank rank, Engine& engine) {
      for (int round = 0; round < 50; ++round) EXPECT_EQ(once(engine, rank), "");
    });
    fakeNcclCount(&counters);
    EXPECT_EQ(counters.communicators, 2U);
  }
  fakeNcclCount(&counters);
  EXPECT_EQ(counters.communicators, 0U);
  FakeCudaCounters after;
  fakeCudaCount(&after);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.pinned, before.pinned);
  EXPECT_EQ(after.allocations, before.allocations);
}

}  // namespace
}  // namespace farandole::testing

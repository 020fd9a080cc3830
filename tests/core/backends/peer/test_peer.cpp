// Tensors on devices that are copied from peer to peer: engines on threads, over the fake driver,
// with a device for each rank and with one for all.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "backends/peer/buffers.h"
#include "fake_nccl.h"
#include "framework.h"

namespace farandole::testing {
namespace {

const bool kFourDevices = ::setenv("FAKE_CUDA_DEVICES", "4", 1) == 0;
constexpr std::size_t kSlot = PeerBuffers::kSlotBytes;

/// No two chunks of it are alike.
std::vector<std::uint8_t> bytes(std::size_t count, unsigned seed) {
  std::vector<std::uint8_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<std::uint8_t>((i + 1 + 977 * seed) * 0x9E3779B97F4A7C15U >> 56U);
  }
  return values;
}

Shape of(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

std::uint64_t batches(Engine& engine, const std::string& path) {
  const auto paths = engine.paths();
  const auto found = paths.find(path);
  return found == paths.end() ? 0 : found->second.operations;
}

EngineOptions by_peers() {
  EngineOptions options = with_fake_device();
  options.devices.ways.fill("PEER");
  return options;
}

/// What came of an operation whose result the engine has allocated, where the framework wants it.
std::vector<std::uint8_t> result(Framework& framework, Output& output, std::size_t count) {
  if (count == 0) return {};
  std::byte* const here = framework.allocate(count);
  EXPECT_NE(output.device, nullptr);
  EXPECT_TRUE(static_cast<bool>(
      output.device->deliver(std::move(output.buffer), count, here, framework.stream())));
  return framework.read<std::uint8_t>(here, count);
}

std::vector<std::uint8_t> gather(Engine& engine, Framework& framework, const std::string& name,
                                 const std::vector<std::uint8_t>& mine, std::size_t expected,
                                 std::int32_t process_set = 0) {
  const auto work = run(engine, {.kind = Kind::Allgather,
                                 .name = name,
                                 .tensors = {on_device(framework, framework.tensor(mine), nullptr,
                                                       DType::UInt8, of(mine.size()))},
                                 .process_set = process_set});
  if (work == nullptr) return {};
  EXPECT_EQ(work->outputs.front().shape, of(expected));
  return result(framework, work->outputs.front(), expected);
}

struct Place {
  int ranks;
  bool shared;  // all have one device
};

class Peer : public ::testing::TestWithParam<Place> {
 protected:
  Peer() : cluster_({ranks()}, by_peers()) { fakeNcclFaults("", "", ""); }
  ~Peer() override { fakeCudaDelay(200); }

  static std::vector<Rank> ranks() {
    std::vector<Rank> all;
    for (Rank rank = 0; rank < GetParam().ranks; ++rank) all.push_back(rank);
    return all;
  }
  static int device_of(Rank rank) { return GetParam().shared ? 0 : rank; }

  Cluster cluster_;
};

TEST_P(Peer, GathersRowsThatDiffer) {
  // Of each rank: nothing on some, more than a buffer on others, nothing on all.
  const std::vector<std::array<std::size_t, 4>> rows = {
      {5, 1005, 2005, 3005}, {0, 1, 0, 2}, {0, 0, 0, 0}, {kSlot - 1, 7, 2 * kSlot + 333, 1}};
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto data = [&](std::size_t r) {
        return bytes(rows[i][r], static_cast<unsigned>(10 * i + r));
      };
      std::vector<std::uint8_t> expected;
      for (std::size_t r = 0; r < static_cast<std::size_t>(cluster_.size()); ++r) {
        const auto theirs = data(r);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      EXPECT_EQ(gather(engine, framework, "g" + std::to_string(i),
                       data(static_cast<std::size_t>(rank)), expected.size()),
                expected);
    }
    EXPECT_EQ(batches(engine, "peer"), rows.size());
  });
}

TEST_P(Peer, GathersManyTensorsAsOne) {
  constexpr std::size_t kTensors = 20;
  const auto count = [](std::size_t tensor, Rank rank) {
    return tensor == 7 ? kSlot / 4 : tensor * 13 * static_cast<std::size_t>(rank + 1) % 700;
  };
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    Submission group{.kind = Kind::Allgather, .name = "g", .grouped = true};
    for (std::size_t t = 0; t < kTensors; ++t) {
      const auto mine = bytes(count(t, rank), static_cast<unsigned>(t * 10) + unsigned(rank));
      group.tensors.push_back(
          on_device(framework, framework.tensor(mine), nullptr, DType::UInt8, of(mine.size())));
    }
    const auto work = run(engine, std::move(group));
    ASSERT_NE(work, nullptr);
    for (std::size_t t = 0; t < kTensors; ++t) {
      std::vector<std::uint8_t> expected;
      for (Rank other = 0; other < cluster_.size(); ++other) {
        const auto theirs = bytes(count(t, other), static_cast<unsigned>(t * 10) + unsigned(other));
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      EXPECT_EQ(result(framework, work->outputs[t], expected.size()), expected);
    }
  });
}

TEST_P(Peer, Broadcasts) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kSlot, 2 * kSlot + 17}) {
      const auto expected = bytes(count, static_cast<unsigned>(count));
      for (const bool in_place : {true, false}) {
        const Rank root = in_place ? 0 : cluster_.size() - 1;
        const auto mine = rank == root ? expected : bytes(count, 99);
        std::byte* const in = framework.tensor(mine);
        std::byte* const out = in_place ? in : framework.allocate(count);
        run(engine, {.kind = Kind::Broadcast,
                     .name = "b",
                     .tensors = {on_device(framework, in, out, DType::UInt8, of(count))},
                     .root = root});
        EXPECT_EQ(framework.read<std::uint8_t>(out, count), expected);
        if (!in_place) {
          EXPECT_EQ(framework.read<std::uint8_t>(in, count), mine);
        }
      }
    }
    EXPECT_EQ(batches(engine, "peer"), 8U);
  });
}

TEST_P(Peer, SwapsRows) {
  const auto size = static_cast<std::size_t>(cluster_.size());
  const auto from_to = [](std::size_t from, std::size_t to) -> std::size_t {
    if (from == 0) return 0;  // sends nothing
    return (from * 7 + to * 3) % 5 * (kSlot / 3) + from + 2 * to;
  };
  const auto data = [&](std::size_t from) {
    std::size_t sum = 0;
    for (std::size_t to = 0; to < size; ++to) sum += from_to(from, to);
    return bytes(sum, static_cast<unsigned>(from));
  };
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    const auto self = static_cast<std::size_t>(rank);
    const auto mine = data(self);
    std::vector<std::int32_t> received(size);
    Tensor tensor =
        on_device(framework, framework.tensor(mine), nullptr, DType::UInt8, of(mine.size()));
    for (std::size_t to = 0; to < size; ++to) {
      tensor.splits.push_back(static_cast<std::int64_t>(from_to(self, to)));
    }
    tensor.received = received.data();
    Submission swap{.kind = Kind::Alltoall, .name = "a"};
    swap.tensors.push_back(std::move(tensor));
    const auto work = run(engine, std::move(swap));
    ASSERT_NE(work, nullptr);
    std::vector<std::uint8_t> expected;
    for (std::size_t from = 0; from < size; ++from) {
      const auto theirs = data(from);
      std::size_t begin = 0;
      for (std::size_t to = 0; to < self; ++to) begin += from_to(from, to);
      const auto first = theirs.begin() + static_cast<std::ptrdiff_t>(begin);
      expected.insert(expected.end(), first,
                      first + static_cast<std::ptrdiff_t>(from_to(from, self)));
      EXPECT_EQ(static_cast<std::size_t>(received[from]), from_to(from, self));
    }
    EXPECT_EQ(result(framework, work->outputs.front(), expected.size()), expected);
    EXPECT_EQ(batches(engine, "peer"), 1U);
  });
}

TEST_P(Peer, ComesAfterWhatTheStreamHasAndBeforeWhatComes) {
  constexpr std::size_t kCount = 5000;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount));
    std::byte* const copy = framework.allocate(kCount * 4);
    float expected = 0.0F;
    for (int round = 0; round < 10; ++round) {
      // Only streams order these: nobody waits on the host.
      const Rank root = round % cluster_.size();
      framework.add(reinterpret_cast<FakeCudaAddress>(tensor), kCount,
                    static_cast<float>(rank + 1));
      run(engine, {.kind = Kind::Broadcast,
                   .name = "b",
                   .tensors = {on_device(framework, tensor, tensor, DType::Float32, of(kCount))},
                   .root = root});
      expected += static_cast<float>(root + 1);
      run(engine, {.kind = Kind::Broadcast,
                   .name = "c",
                   .tensors = {on_device(framework, tensor, copy, DType::Float32, of(kCount))},
                   .root = root});
      framework.add(reinterpret_cast<FakeCudaAddress>(copy), kCount, 0.5F);
      EXPECT_EQ(framework.read<float>(copy, kCount), std::vector<float>(kCount, expected + 0.5F));
    }
    EXPECT_EQ(framework.read<float>(tensor, kCount), std::vector<float>(kCount, expected));
  });
}

/// And as its copies come late, nothing of the root is overwritten before.
TEST_P(Peer, WritesNothingBeforeItsStreamIsThere) {
  constexpr std::size_t kBytes = 2 * kSlot + 1000;
  const auto expected = bytes(kBytes, 1);
  std::array<Framework, 4> frameworks;
  for (Rank rank = 1; rank < cluster_.size(); ++rank) {
    fakeCudaHold(frameworks[static_cast<std::size_t>(rank)].fake());
  }
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework& framework = frameworks[static_cast<std::size_t>(rank)];
    std::byte* const tensor = rank == 0 ? framework.tensor(expected) : framework.allocate(kBytes);
    if (rank != 0) framework.fill(tensor, kBytes, 0xEE);  // before the result
    auto handle =
        engine.submit({.kind = Kind::Broadcast,
                       .name = "b",
                       .tensors = {on_device(framework, tensor, tensor, DType::UInt8, of(kBytes))},
                       .root = 0});
    ASSERT_TRUE(static_cast<bool>(handle));
    if (rank != 0) {
      const auto early = engine.wait(*handle, Clock::now() + std::chrono::milliseconds(50));
      EXPECT_FALSE(early.has_value() && *early);
      fakeCudaRelease(framework.fake());
    }
    const auto work = finish(engine, *handle);
    ASSERT_NE(work, nullptr);
    EXPECT_FALSE(work->error.has_value());
    EXPECT_EQ(framework.read<std::uint8_t>(tensor, kBytes), expected);
  });
}

/// A slot that is filled while somebody still reads it, or read before it is filled, shows: every
/// chunk differs from the one that was there before.
TEST_P(Peer, ASlotIsUsedAgainWhenAllHaveReadIt) {
  constexpr std::size_t kBytes = 3 * kSlot + 1000;
  fakeCudaDelay(3000);
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    std::byte* const tensor = framework.allocate(kBytes);
    for (unsigned round = 0; round < 6; ++round) {
      const std::size_t count = round % 2 == 0 ? kBytes : kBytes / 64;
      const Rank root = static_cast<Rank>(round / 2) % cluster_.size();
      const auto expected = bytes(count, round);
      if (rank == root) {
        ASSERT_TRUE(static_cast<bool>(
            framework.context().copy(tensor, expected.data(), count, framework.stream())));
      }
      run(engine, {.kind = Kind::Broadcast,
                   .name = "b",
                   .tensors = {on_device(framework, tensor, tensor, DType::UInt8, of(count))},
                   .root = root});
      EXPECT_EQ(framework.read<std::uint8_t>(tensor, count), expected);
      const auto mine = bytes(5000, 100 * round + static_cast<unsigned>(rank));
      std::vector<std::uint8_t> all;
      for (Rank other = 0; other < cluster_.size(); ++other) {
        const auto theirs = bytes(5000, 100 * round + static_cast<unsigned>(other));
        all.insert(all.end(), theirs.begin(), theirs.end());
      }
      EXPECT_EQ(gather(engine, framework, "g", mine, all.size()), all);
    }
  });
}

TEST_P(Peer, LeavesReductionsToStaging) {
  constexpr std::size_t kCount = 10001;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    std::mt19937 generator(static_cast<unsigned>(rank));
    std::vector<float> mine(kCount);
    for (float& value : mine) value = static_cast<float>(generator()) * 1e-3F;
    std::vector<float> expected = mine;
    run(engine, {.name = "host", .tensors = {tensor_of(expected)}});
    std::byte* const tensor = framework.tensor(mine);
    run(engine, {.name = "t",
                 .tensors = {on_device(framework, tensor, tensor, DType::Float32, of(kCount))}});
    EXPECT_EQ(framework.read<float>(tensor, kCount), expected);
    EXPECT_EQ(batches(engine, "peer"), 0U);
    EXPECT_EQ(batches(engine, "staged.shm"), 1U);
  });
}

TEST_P(Peer, ManyAtOnceInAnyOrder) {
  constexpr std::size_t kTensors = 30;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    std::vector<std::size_t> order(kTensors);
    for (std::size_t i = 0; i < kTensors; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank)));
    std::vector<std::byte*> tensors(kTensors);
    std::vector<Handle> handles;
    const auto count = [](std::size_t i) { return i * i * 137 + 1; };
    for (const std::size_t i : order) {
      tensors[i] =
          framework.tensor(bytes(count(i), static_cast<unsigned>(i) + 1000 * unsigned(rank)));
      auto handle = engine.submit(
          {.kind = i % 3 == 0 ? Kind::Allreduce : Kind::Broadcast,
           .name = "t" + std::to_string(i),
           .tensors = {on_device(framework, tensors[i], tensors[i], DType::UInt8, of(count(i)))},
           .op = i % 3 == 0 ? ReduceOp::Max : ReduceOp::Sum,
           .root = i % 3 == 0 ? 0 : static_cast<int>(i) % cluster_.size()});
      ASSERT_TRUE(static_cast<bool>(handle));
      handles.push_back(*handle);
    }
    for (const Handle handle : handles) EXPECT_FALSE(finish(engine, handle)->error.has_value());
    for (std::size_t i = 0; i < kTensors; ++i) {
      auto expected = bytes(
          count(i),
          static_cast<unsigned>(i) +
              1000 * static_cast<unsigned>(i % 3 == 0 ? 0 : static_cast<int>(i) % cluster_.size()));
      for (Rank other = 1; i % 3 == 0 && other < cluster_.size(); ++other) {
        const auto theirs = bytes(count(i), static_cast<unsigned>(i) + 1000 * unsigned(other));
        for (std::size_t at = 0; at < expected.size(); ++at) {
          expected[at] = std::max(expected[at], theirs[at]);
        }
      }
      EXPECT_EQ(framework.read<std::uint8_t>(tensors[i], count(i)), expected);
    }
  });
}

TEST_P(Peer, SetsHaveBuffersOfTheirOwn) {
  if (cluster_.size() == 2) GTEST_SKIP() << "a set of both is the world";
  const Rank last = cluster_.size() - 1;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework(device_of(rank));
    for (unsigned round = 0; round < 3; ++round) {
      const auto added = run(engine, {.kind = Kind::AddProcessSet, .ranks = {0, last}});
      ASSERT_NE(added, nullptr);
      const auto set = static_cast<std::int32_t>(*added->value);
      const auto data = [&](Rank r) { return bytes(2000, 10 * round + unsigned(r)); };
      std::vector<std::uint8_t> all;
      std::vector<std::uint8_t> ends;
      for (Rank other = 0; other < cluster_.size(); ++other) {
        const auto theirs = data(other);
        all.insert(all.end(), theirs.begin(), theirs.end());
        if (other == 0 || other == last) ends.insert(ends.end(), theirs.begin(), theirs.end());
      }
      EXPECT_EQ(gather(engine, framework, "all", data(rank), all.size()), all);
      if (rank == 0 || rank == last) {
        EXPECT_EQ(gather(engine, framework, "ends", data(rank), ends.size(), set), ends);
      }
      run(engine, {.kind = Kind::RemoveProcessSet, .root = set});
    }
  });
}

std::string place_name(const ::testing::TestParamInfo<Place>& info) {
  return std::to_string(info.param.ranks) + (info.param.shared ? "OnOneDevice" : "Devices");
}

INSTANTIATE_TEST_SUITE_P(Worlds, Peer,
                         ::testing::Values(Place{2, false}, Place{2, true}, Place{3, false},
                                           Place{4, true}),
                         place_name);

class PeerChoice : public ::testing::Test {
 protected:
  PeerChoice() { fakeNcclFaults("", "", ""); }

  /// One broadcast of a rank from rank 0; its error.
  static std::string once(Engine& engine, int device) {
    Framework framework(device);
    std::byte* const tensor = framework.tensor(std::vector<float>(100, 1.0F));
    framework.synchronize();
    auto handle =
        engine.submit({.kind = Kind::Broadcast,
                       .name = "t",
                       .tensors = {on_device(framework, tensor, tensor, DType::Float32, {100})},
                       .root = 0,
                       .mode = Mode::Awaited});
    if (!handle) return handle.error().what();
    const auto work = finish(engine, *handle);
    framework.synchronize();
    return work->error ? work->error->what() : "";
  }
};

TEST_F(PeerChoice, NobodyCopiesFromAPeerUnasked) {
  Cluster cluster({{0, 1}}, with_fake_device());
  cluster.each([&](Rank, Engine& engine) {
    EXPECT_EQ(once(engine, 0), "");
    EXPECT_EQ(batches(engine, "peer"), 0U);
    EXPECT_EQ(batches(engine, "staged.shm"), 1U);
  });
}

TEST_F(PeerChoice, OneRankThatAsksIsEnoughUnlessAnotherRefuses) {
  Cluster cluster({{0, 1}}, with_fake_device(), -1, {}, {}, {}, 1, false,
                  [](EngineOptions& options) {
                    if (options.rank == 1) options.devices[Kind::Broadcast] = "PEER";
                  });
  cluster.each([&](Rank, Engine& engine) {
    EXPECT_EQ(once(engine, 0), "");
    EXPECT_EQ(batches(engine, "peer"), 1U);
  });
}

TEST_F(PeerChoice, WhoAsksForItHearsThatAnotherRefuses) {
  for (const char* const other : {"STAGED", "NCCL"}) {
    Cluster cluster({{0, 1}}, with_fake_device(), -1, {}, {}, {}, 1, false,
                    [&](EngineOptions& options) {
                      options.devices[Kind::Broadcast] = options.rank == 0 ? "PEER" : other;
                    });
    cluster.each([&](Rank rank, Engine& engine) {
      const std::string error = once(engine, rank);
      EXPECT_NE(error.find("was asked for"), std::string::npos) << error;
      EXPECT_NE(error.find("the settings of the job say so"), std::string::npos) << error;
    });
  }
}

TEST_F(PeerChoice, EachCollectiveHasAChoice) {
  EngineOptions options = with_fake_device();
  options.devices[Kind::Broadcast] = "PEER";
  options.devices[Kind::Allreduce] = "NCCL";
  options.devices[Kind::Allgather] = "STAGED";
  Cluster cluster({{0, 1}}, options);
  cluster.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    EXPECT_EQ(once(engine, rank), "");
    std::byte* const tensor = framework.tensor(std::vector<float>(100, 1.0F));
    run(engine,
        {.name = "r", .tensors = {on_device(framework, tensor, tensor, DType::Float32, {100})}});
    EXPECT_EQ(gather(engine, framework, "g", bytes(9, 1), 18).size(), 18U);
    EXPECT_EQ(framework.read<float>(tensor, 100), std::vector<float>(100, 2.0F));
    for (const char* const path : {"peer", "nccl", "staged.shm"}) {
      EXPECT_EQ(batches(engine, path), 1U) << path;
    }
  });
}

TEST_F(PeerChoice, RanksOfTwoHostsCannot) {
  Cluster cluster({{0, 1}, {2}}, by_peers());
  cluster.each([&](Rank rank, Engine& engine) {
    const std::string error = once(engine, rank);
    EXPECT_NE(error.find("PEER was asked for"), std::string::npos) << error;
    EXPECT_NE(error.find("ranks 0 and 2 do not share the memory of a host"), std::string::npos)
        << error;
  });
}

TEST_F(PeerChoice, SetsOfOneHostCanWhereTheWorldCannot) {
  Cluster cluster({{0, 1}, {2}}, by_peers());
  cluster.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    const auto added = run(engine, {.kind = Kind::AddProcessSet, .ranks = {0, 1}});
    ASSERT_NE(added, nullptr);
    if (rank < 2) {
      const auto set = static_cast<std::int32_t>(*added->value);
      EXPECT_EQ(gather(engine, framework, "g", bytes(9, 1), 18, set).size(), 18U);
      EXPECT_EQ(batches(engine, "peer"), 1U);
    }
  });
}

TEST_F(PeerChoice, AWorldOfOneNeedsNobody) {
  Cluster cluster({{0}}, by_peers());
  EXPECT_EQ(once(cluster[0], 0), "");
}

TEST_F(PeerChoice, NothingStaysBehind) {
  FakeCudaCounters before;
  fakeCudaCount(&before);
  {
    Cluster cluster({{0, 1}}, by_peers());
    cluster.each([&](Rank rank, Engine& engine) {
      Framework framework(rank);
      for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(once(engine, rank), "");
        EXPECT_EQ(gather(engine, framework, "g", bytes(1000, 1), 2000).size(), 2000U);
      }
    });
  }
  FakeCudaCounters after;
  fakeCudaCount(&after);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.pinned, before.pinned);
  EXPECT_EQ(after.allocations, before.allocations);
}

}  // namespace
}  // namespace farandole::testing

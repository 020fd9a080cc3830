// What goes wrong with copies between peers: every case ends on all ranks, in bounded time, with a
// sentence that says who and why, and no stream is stuck.

#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string_view>

#include "backends/peer/buffers.h"
#include "fake_nccl.h"
#include "framework.h"

namespace farandole::testing {
namespace {

using std::chrono::seconds;

const bool kThreeDevices = ::setenv("FAKE_CUDA_DEVICES", "3", 1) == 0;
constexpr std::size_t kSlot = PeerBuffers::kSlotBytes;
constexpr std::size_t kCount = 1000;

EngineOptions by_peers() {
  EngineOptions options = with_fake_device();
  options.devices.ways.fill("PEER");
  return options;
}

std::uint64_t batches(Engine& engine, const std::string& path) {
  const auto paths = engine.paths();
  const auto found = paths.find(path);
  return found == paths.end() ? 0 : found->second.operations;
}

void expect_all(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

class PeerFailures : public ::testing::Test {
 protected:
  PeerFailures() {
    reset();
    for (std::size_t i = 0; i < kRanks; ++i) {
      frameworks_.push_back(std::make_unique<Framework>(static_cast<int>(i)));
    }
  }
  ~PeerFailures() override { reset(); }

  static constexpr std::size_t kRanks = 3;
  [[nodiscard]] Framework& of(Rank rank) { return *frameworks_[static_cast<std::size_t>(rank)]; }

  /// One allgather of a rank on the device of its number; its error.
  std::string once(Engine& engine, Rank rank, std::size_t bytes = kCount) {
    return once(engine, of(rank), bytes);
  }
  static std::string once(Engine& engine, Framework& framework, std::size_t bytes = kCount) {
    return error_of(
        engine, {.kind = Kind::Allgather,
                 .name = "g",
                 .tensors = {on_device(framework, framework.allocate(bytes), nullptr, DType::UInt8,
                                       {static_cast<std::int64_t>(bytes)})}});
  }
  static std::string error_of(Engine& engine, Submission submission) {
    submission.mode = Mode::Awaited;
    auto handle = engine.submit(std::move(submission));
    if (!handle) return handle.error().what();
    const auto work = finish(engine, *handle);
    if (work == nullptr) return "no end";
    return work->error ? work->error->what() : "";
  }
  /// What each rank says about an operation of all.
  std::vector<std::string> all(Cluster& cluster, std::size_t bytes = kCount) {
    std::vector<std::string> errors(static_cast<std::size_t>(cluster.size()));
    cluster.each([&](Rank rank, Engine& engine) {
      errors[static_cast<std::size_t>(rank)] = once(engine, rank, bytes);
    });
    return errors;
  }

 private:
  static void reset() {
    fakeNcclFaults("", "", "");
    fakeCudaFail("");
    fakeCudaDelay(200);
    ::setenv("FAKE_CUDA_PEERS", "1", 1);
  }
  // Their memory outlives what the engines of a test still copy.
  std::vector<std::unique_ptr<Framework>> frameworks_;
};

TEST_F(PeerFailures, NoMemoryForABuffer) {
  for (Rank rank = 0; rank < 3; ++rank) of(rank).allocate(1);
  Cluster cluster({{0, 1, 2}}, by_peers());
  std::vector<std::byte*> tensors;
  for (Rank rank = 0; rank < 3; ++rank) tensors.push_back(of(rank).allocate(kCount));
  fakeCudaFail("cuMemAlloc:2:2");  // of one rank, whichever it is
  std::set<std::string> sentences;
  std::mutex mutex;
  cluster.each([&](Rank rank, Engine& engine) {
    std::byte* const tensor = tensors[static_cast<std::size_t>(rank)];
    const std::string error = error_of(
        engine,
        {.kind = Kind::Broadcast,
         .name = "b",
         .tensors = {on_device(of(rank), tensor, tensor, DType::UInt8, {std::int64_t{kCount}})},
         .root = 0});
    expect_all(error, {"PEER was asked for (HOROVOD_GPU_OPERATIONS=PEER", "rank ",
                       ": no memory on device ",
                       "for a buffer of " + std::to_string(PeerBuffers::kBytes >> 20U) + " MiB"});
    const std::lock_guard lock(mutex);
    sentences.insert(error.substr(error.find("PEER was asked for")));
  });
  EXPECT_EQ(sentences.size(), 1U) << "all name the same rank";
}

TEST_F(PeerFailures, MemoryThatHasNoHandle) {
  Cluster cluster({{0, 1}}, by_peers());
  fakeCudaFail("cuIpcGetMemHandle:*:801");
  for (const auto& error : all(cluster)) {
    expect_all(error, {"rank 0: no handle for other processes on device 0",
                       "CUDA_ERROR_NOT_SUPPORTED (operation not supported)"});
  }
}

TEST_F(PeerFailures, ADeviceThatCannotReadAnother) {
  ::setenv("FAKE_CUDA_PEERS", "0", 1);
  {
    Cluster cluster({{0, 1}}, by_peers());
    for (const auto& error : all(cluster)) {
      expect_all(error, {"rank 0: its device 0 cannot read the memory of that of rank 1"});
    }
  }
  Cluster cluster({{0, 1}}, by_peers());
  cluster.each([&](Rank, Engine& engine) {
    Framework framework(2);
    EXPECT_EQ(once(engine, framework), "") << "both are on one";
    EXPECT_EQ(batches(engine, "peer"), 1U);
  });
}

TEST_F(PeerFailures, TheDriverDoesNotTellWhoReachesWhom) {
  Cluster cluster({{0, 1}}, by_peers());
  fakeCudaFail("cuDeviceCanAccessPeer:*:999");
  for (const auto& error : all(cluster)) {
    expect_all(error, {"rank 0: cannot tell which devices are reached", "CUDA_ERROR_UNKNOWN"});
  }
}

/// Wherever it happens: the copies into the buffer, those out of it, and the tensor's own.
TEST_F(PeerFailures, ACopyFailsOnOneRank) {
  for (const int copy : {1, 2, 3, 4, 5, 6}) {
    Cluster cluster({{0, 1}}, by_peers());
    EXPECT_EQ(all(cluster), (std::vector<std::string>{"", ""}));
    fakeCudaFail(("cuMemcpyAsync:" + std::to_string(copy) + ":2").c_str());
    for (const auto& error : all(cluster, kSlot + 5)) {
      expect_all(error, {"cannot copy", "CUDA_ERROR_OUT_OF_MEMORY"});
    }
    fakeCudaFail("");
  }
}

TEST_F(PeerFailures, NobodyTellsWhenACopyIsOver) {
  Cluster cluster({{0, 1}}, by_peers());
  EXPECT_EQ(all(cluster), (std::vector<std::string>{"", ""}));
  fakeCudaFail("cuEventRecord:3+:2");
  for (const auto& error : all(cluster)) EXPECT_NE(error, "");
}

/// Its buffer stays where it is: what is freed under a copy breaks the device that copies.
TEST_F(PeerFailures, ARankEndsWhileAnotherReadsItsBuffer) {
  Cluster cluster({{0, 1, 2}}, by_peers());
  EXPECT_EQ(all(cluster), (std::vector<std::string>(3)));
  fakeCudaHold(of(1).fake());  // its copies come after what its framework computes
  fakeCudaFail("");            // counts from here
  std::array<Handle, 3> handles{};
  cluster.each([&](Rank rank, Engine& engine) {
    std::byte* const tensor = of(rank).allocate(kCount);
    auto handle = engine.submit(
        {.kind = Kind::Broadcast,
         .name = "b",
         .tensors = {on_device(of(rank), tensor, tensor, DType::UInt8, {std::int64_t{kCount}})},
         .root = 0,
         .mode = Mode::Awaited});
    ASSERT_TRUE(static_cast<bool>(handle));
    handles[static_cast<std::size_t>(rank)] = *handle;
  });
  // The root has filled its buffer, and the others have asked for what is in it.
  const auto limit = Clock::now() + seconds(30);
  while (fakeCudaCalls("cuMemcpyAsync") < 3 && Clock::now() < limit) {
    static_cast<void>(cluster[0].wait(handles[0], Clock::now() + std::chrono::milliseconds(1)));
  }
  ASSERT_EQ(fakeCudaCalls("cuMemcpyAsync"), 3U);
  cluster.cut(2);
  if (const auto work = finish(cluster[0], handles[0])) {
    EXPECT_TRUE(work->error.has_value());
  }
  cluster.end(0);
  fakeCudaRelease(of(1).fake());
  cluster.end(1);
  cluster.end(2);
  of(1).synchronize();

  Cluster next({{0, 1, 2}}, by_peers());
  EXPECT_EQ(all(next), (std::vector<std::string>(3))) << "the devices still serve";
}

/// Nobody has said that he has closed what he had opened.
TEST_F(PeerFailures, ABufferOutlivesAWorldThatFailsBetweenOperations) {
  Cluster cluster({{0, 1, 2}}, by_peers());
  EXPECT_EQ(all(cluster), (std::vector<std::string>(3)));
  cluster.cut(2);
  EXPECT_NE(once(cluster[0], 0), "");
  FakeCudaCounters before;
  fakeCudaCount(&before);
  cluster.end(0);
  FakeCudaCounters after;
  fakeCudaCount(&after);
  EXPECT_LT(before.allocated_bytes - after.allocated_bytes, PeerBuffers::kBytes) << "it was freed";
  cluster.end(1);
  cluster.end(2);
}

TEST_F(PeerFailures, ADeviceThatComputesForLongIsNotStuck) {
  EngineOptions options = by_peers();
  options.operation_timeout = seconds(3);
  Cluster cluster({{0, 1, 2}}, options);
  fakeCudaHold(of(1).fake());
  cluster.each([&](Rank rank, Engine& engine) {
    std::jthread releases;
    if (rank == 1) {
      releases = std::jthread([stream = of(1).fake()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(7000));
        fakeCudaRelease(stream);
      });
    }
    std::byte* const tensor = of(rank).allocate(kCount);
    of(rank).fill(tensor, kCount, static_cast<unsigned char>(rank + 1));
    EXPECT_EQ(error_of(engine, {.kind = Kind::Broadcast,
                                .name = "b",
                                .tensors = {on_device(of(rank), tensor, tensor, DType::UInt8,
                                                      {std::int64_t{kCount}})},
                                .root = 1}),
              "");
    EXPECT_EQ(of(rank).read<std::uint8_t>(tensor, kCount), std::vector<std::uint8_t>(kCount, 2));
  });
}

TEST_F(PeerFailures, ARankIsLostBetweenTwoChunks) {
  for (const std::size_t chunks : {std::size_t{1}, std::size_t{3}}) {
    Cluster cluster({{0, 1, 2}}, by_peers());
    fakeCudaDelay(3000);
    cluster.each([&](Rank rank, Engine& engine) {
      const auto bytes = static_cast<std::int64_t>(chunks * kSlot);
      std::byte* const tensor = of(rank).allocate(chunks * kSlot);
      for (int round = 0; round < 50; ++round) {
        auto handle =
            engine.submit({.kind = Kind::Broadcast,
                           .name = "b",
                           .tensors = {on_device(of(rank), tensor, tensor, DType::UInt8, {bytes})},
                           .root = round % 3,
                           .mode = Mode::Awaited});
        if (!handle) return;
        if (rank == 2 && round == 3) {
          engine.shutdown({.reason = wire::Departure::Reason::Failed, .text = "it died"});
        }
        const auto began = Clock::now();
        const auto work = finish(engine, *handle);
        EXPECT_LT(Clock::now() - began, seconds(10));
        if (work->error) {
          of(rank).synchronize();  // nothing waits for an operation that will never end
          return;
        }
      }
      ADD_FAILURE() << "nobody was told";
    });
  }
}

TEST_F(PeerFailures, AnEngineEndsBeforeAKernelThatDoesNot) {
  EngineOptions options = by_peers();
  options.operation_timeout = seconds(4);
  auto cluster = std::make_unique<Cluster>(Groups{{0, 1}}, options);
  cluster->each([&](Rank rank, Engine& engine) {
    EXPECT_EQ(once(engine, rank), "");  // the buffers are there
    Framework& framework = of(rank);
    auto* const tensor = framework.tensor(std::vector<float>(kCount, 1.0F));
    framework.synchronize();
    fakeCudaHold(framework.fake());
    framework.add(reinterpret_cast<FakeCudaAddress>(tensor), kCount, 1.0F);
    auto handle = engine.submit({.kind = Kind::Allgather,
                                 .name = "t",
                                 .tensors = {on_device(framework, tensor, nullptr, DType::Float32,
                                                       {static_cast<std::int64_t>(kCount)})}});
    ASSERT_TRUE(static_cast<bool>(handle));
  });
  const auto began = Clock::now();
  cluster.reset();
  EXPECT_LT(Clock::now() - began, seconds(30));
  for (Rank rank = 0; rank < 2; ++rank) fakeCudaRelease(of(rank).fake());
  for (Rank rank = 0; rank < 2; ++rank) of(rank).synchronize();
}

TEST_F(PeerFailures, ARankIsLostThatNeverCameToAMeeting) {
  Cluster cluster({{0, 1, 2}}, by_peers());
  EXPECT_EQ(all(cluster), (std::vector<std::string>(3)));
  fakeCudaHold(of(2).fake());
  cluster.each([&](Rank rank, Engine& engine) {
    std::byte* const tensor = of(rank).allocate(kCount);
    of(rank).fill(tensor, kCount, 1);
    auto handle = engine.submit(
        {.kind = Kind::Broadcast,
         .name = "b",
         .tensors = {on_device(of(rank), tensor, tensor, DType::UInt8, {std::int64_t{kCount}})},
         .root = 2});
    ASSERT_TRUE(static_cast<bool>(handle));
    if (rank == 2) {
      const auto early = engine.wait(*handle, Clock::now() + std::chrono::milliseconds(200));
      EXPECT_FALSE(early.has_value() && *early);
      cluster.cut(2);
      engine.shutdown({.reason = wire::Departure::Reason::Failed, .text = "it died"});
      fakeCudaRelease(of(2).fake());
      return;
    }
    const auto began = Clock::now();
    const auto work = finish(engine, *handle);
    ASSERT_NE(work, nullptr);
    ASSERT_TRUE(work->error.has_value());
    expect_all(work->error->what(), {"rank 2"});
    EXPECT_LT(Clock::now() - began, seconds(15));
    of(rank).synchronize();
  });
}

TEST_F(PeerFailures, ATensorMayLieOnAnotherDeviceThanTheBuffer) {
  Cluster cluster({{0, 1}}, by_peers());
  cluster.each([&](Rank rank, Engine& engine) {
    EXPECT_EQ(once(engine, rank), "");
    Framework other(rank == 0 ? 2 : 0);
    std::byte* const tensor = other.allocate(kCount);
    for (unsigned char round = 1; round < 6; ++round) {
      other.fill(tensor, kCount, static_cast<unsigned char>(10 * round + rank));
      run(engine,
          {.kind = Kind::Broadcast,
           .name = "b",
           .tensors = {on_device(other, tensor, tensor, DType::UInt8, {std::int64_t{kCount}})},
           .root = 1});
      EXPECT_EQ(other.read<std::uint8_t>(tensor, kCount),
                std::vector<std::uint8_t>(kCount, static_cast<unsigned char>(10 * round + 1)));
    }
    EXPECT_EQ(batches(engine, "peer"), 6U);
  });
}

TEST_F(PeerFailures, WhoHasJoinedIsAskedAgain) {
  Cluster cluster({{0, 1}}, by_peers());
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 1) {
      std::byte* const tensor = of(1).tensor(std::vector<float>(kCount, 1.0F));
      EXPECT_EQ(error_of(engine, {.name = "r",
                                  .tensors = {on_device(of(1), tensor, tensor, DType::Float32,
                                                        {std::int64_t{kCount}})}}),
                "");
    }
    run(engine, {.kind = Kind::Join});
    EXPECT_EQ(batches(engine, "peer"), 0U);
    EXPECT_EQ(once(engine, rank), "");
    EXPECT_EQ(batches(engine, "peer"), 1U);
  });
}

TEST_F(PeerFailures, NoRowsMayLieAnywhere) {
  Cluster cluster({{0, 1}}, by_peers());
  cluster.each([&](Rank rank, Engine& engine) {
    constexpr std::size_t kBytes = std::size_t{1} << 20;
    std::byte* const memory = of(rank).allocate(kBytes);
    // As x[n:] of a tensor of n rows: where the memory of the device ends.
    std::byte* const in = rank == 0 ? memory + kBytes : memory;
    const auto work = run(
        engine,
        {.kind = Kind::Allgather,
         .name = "g",
         .tensors = {on_device(of(rank), in, nullptr, DType::Float32, {rank == 0 ? 0 : 512, 2})}});
    ASSERT_NE(work, nullptr);
    EXPECT_EQ(work->outputs.front().shape, (Shape{512, 2}));
    EXPECT_EQ(batches(engine, "peer"), 1U);
  });
}

}  // namespace
}  // namespace farandole::testing

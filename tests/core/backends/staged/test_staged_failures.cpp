// What goes wrong with tensors of devices: every failure has a sentence, an end, and leaves
// nothing.

#include <array>
#include <chrono>

#include "framework.h"

namespace farandole::testing {
namespace {

constexpr std::int64_t kCount = 1000;

class StagedFailures : public ::testing::Test {
 protected:
  ~StagedFailures() override { fakeCudaFail(""); }

  /// Submits an allreduce of zeros, and gives its error.
  static std::string refusal(Engine& engine, Framework& framework, std::byte* tensor) {
    auto handle =
        engine.submit({.name = "t",
                       .tensors = {on_device(framework, tensor, tensor, DType::Float32, {kCount})},
                       .mode = Mode::Awaited});
    if (!handle) return handle.error().what();
    const auto work = finish(engine, *handle);
    return work->error ? work->error->what() : "";
  }
};

void expect_all(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(StagedFailures, NoDriver) {
  EngineOptions options = with_fake_device();
  options.device_driver = "libcuda-that-is-nowhere.so.1";
  Cluster cluster({{0, 1}}, options);
  Framework framework;
  std::byte* const tensor = framework.allocate(kCount * 4);
  expect_all(refusal(cluster[0], framework, tensor),
             {"Tensor of allreduce.t is on device CUDA 0", "libcuda-that-is-nowhere.so.1",
              "cannot be loaded"});
}

TEST_F(StagedFailures, ADriverWithoutADevice) {
  Cluster cluster({{0, 1}}, with_fake_device());
  Framework framework;
  std::byte* const tensor = framework.allocate(kCount * 4);
  fakeCudaFail("cuInit:*:100");
  expect_all(refusal(cluster[0], framework, tensor), {"does not start", "CUDA_ERROR_NO_DEVICE"});
  fakeCudaFail("");
}

TEST_F(StagedFailures, ANumberThatNoDeviceHas) {
  Cluster cluster({{0}}, with_fake_device());
  Framework framework;
  std::byte* const memory = framework.allocate(kCount * 4);
  Tensor tensor = on_device(framework, memory, memory, DType::Float32, {kCount});
  tensor.device_index = 17;
  auto handle = cluster[0].submit({.name = "t", .tensors = {tensor}});
  ASSERT_FALSE(static_cast<bool>(handle));
  expect_all(handle.error().what(), {"CUDA 17", "there is no such device", "1 device"});
}

TEST_F(StagedFailures, AGraphIsCaptured) {
  Cluster cluster({{0, 1}}, with_fake_device());
  Framework framework;
  std::byte* const tensor = framework.allocate(kCount * 4);
  fakeCudaBeginCapture(framework.fake());
  expect_all(refusal(cluster[0], framework, tensor), {"captured into a graph", "outside"});
  fakeCudaEndCapture(framework.fake());
  cluster.each([&](Rank, Engine& engine) {
    Framework own;
    EXPECT_EQ(refusal(engine, own, own.tensor(std::vector<float>(kCount))), "");
  });
}

TEST_F(StagedFailures, AnotherGraphIsCapturedMeanwhile) {
  Cluster cluster({{0, 1}}, with_fake_device());
  Framework capturing;
  cluster.each([&](Rank, Engine& engine) {
    Framework own;
    EXPECT_EQ(refusal(engine, own, own.tensor(std::vector<float>(kCount))), "");
  });
  fakeCudaBeginCapture(capturing.fake());
  cluster.each([&](Rank, Engine& engine) {
    Framework own;
    EXPECT_EQ(refusal(engine, own, own.tensor(std::vector<float>(kCount))), "");
  });
  fakeCudaEndCapture(capturing.fake());
}

TEST_F(StagedFailures, ADeviceThatComputesForLongIsNotStuck) {
  EngineOptions options = with_fake_device();
  options.operation_timeout = std::chrono::seconds(3);
  Cluster cluster({{0, 1}, {2}}, options);
  cluster.each([&](Rank rank, Engine& engine) {
    Framework framework;
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount));
    framework.synchronize();
    std::jthread releases;
    if (rank == 0) {
      fakeCudaHold(framework.fake());
      releases = std::jthread([stream = framework.fake()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(7000));
        fakeCudaRelease(stream);
      });
    }
    framework.add(reinterpret_cast<FakeCudaAddress>(tensor), kCount, 1.0F);
    EXPECT_EQ(refusal(engine, framework, tensor), "");
    EXPECT_EQ(framework.read<float>(tensor, kCount), std::vector<float>(kCount, 3.0F));
  });
}

TEST_F(StagedFailures, AnEngineEndsBeforeAKernelThatDoesNot) {
  FakeCudaCounters before;
  FakeCudaCounters after;
  fakeCudaCount(&before);
  const std::size_t copies = fakeCudaCalls("cuMemcpyAsync");
  std::array<Framework, 2> frameworks;
  EngineOptions options = with_fake_device();
  options.operation_timeout = std::chrono::seconds(4);
  auto cluster = std::make_unique<Cluster>(Groups{{0}, {1}}, options);
  std::vector<std::byte*> tensors(2);
  cluster->each([&](Rank rank, Engine& engine) {
    Framework& framework = frameworks[static_cast<std::size_t>(rank)];
    tensors[static_cast<std::size_t>(rank)] = framework.tensor(std::vector<float>(kCount, 1.0F));
    framework.synchronize();
    fakeCudaHold(framework.fake());
    framework.add(reinterpret_cast<FakeCudaAddress>(tensors[static_cast<std::size_t>(rank)]),
                  kCount, 1.0F);
    auto handle =
        engine.submit({.name = "t",
                       .tensors = {on_device(framework, tensors[static_cast<std::size_t>(rank)],
                                             tensors[static_cast<std::size_t>(rank)],
                                             DType::Float32, {kCount})}});
    ASSERT_TRUE(static_cast<bool>(handle));
  });
  // The tensors were written by two copies; those from them are on streams of the engines.
  const auto limit = Clock::now() + std::chrono::seconds(10);
  while (fakeCudaCalls("cuMemcpyAsync") < copies + 4 && Clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_GE(fakeCudaCalls("cuMemcpyAsync"), copies + 4);
  const auto began = Clock::now();
  ::testing::internal::CaptureStderr();
  cluster.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(40));
  expect_all(said, {"a kernel before it does not end", "Its memory is left behind"});
  for (Framework& framework : frameworks) fakeCudaRelease(framework.fake());
  // What was put on the device goes on in memory that is still there.
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(frameworks[rank].read<float>(tensors[rank], 1), std::vector<float>(1, 2.0F));
  }
  fakeCudaCount(&after);
  EXPECT_GT(after.pinned, before.pinned);
}

TEST_F(StagedFailures, AStreamThatIsGone) {
  Cluster cluster({{0, 1}}, with_fake_device());
  Framework framework;
  std::byte* const tensor = framework.allocate(kCount * 4);
  Tensor stale = on_device(framework, tensor, tensor, DType::Float32, {kCount});
  {
    Framework other;
    stale.stream = other.stream();
  }
  auto handle = cluster[0].submit({.name = "t", .tensors = {stale}});
  ASSERT_FALSE(static_cast<bool>(handle));
  expect_all(handle.error().what(),
             {"Tensor of allreduce.t is on device CUDA 0", "stream", "CUDA_ERROR_INVALID_HANDLE"});
}

TEST_F(StagedFailures, AStreamThatGoesMeanwhile) {
  std::array<Framework, 2> frameworks;  // their memory outlives what the engines still copy
  Cluster cluster({{0, 1}}, with_fake_device());
  std::vector<std::string> errors(2);
  cluster.each([&](Rank rank, Engine& engine) {
    Framework& framework = frameworks[static_cast<std::size_t>(rank)];
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount));
    auto extra = DeviceStream::open(framework.context().shared_from_this());
    ASSERT_TRUE(static_cast<bool>(extra));
    Tensor mine = on_device(framework, tensor, tensor, DType::Float32, {kCount});
    framework.synchronize();
    if (rank == 0) mine.stream = (*extra)->get();
    auto handle = engine.submit({.name = "t", .tensors = {mine}});
    ASSERT_TRUE(static_cast<bool>(handle));
    if (rank == 0) extra->reset();
    const auto work = finish(engine, *handle);
    if (work->error) errors[static_cast<std::size_t>(rank)] = work->error->what();
  });
  expect_all(errors[0], {"the stream that 'allreduce.t' was submitted on"});
  EXPECT_EQ(errors[1], "");
}

TEST_F(StagedFailures, NoPinnedMemory) {
  Cluster cluster({{0, 1}}, with_fake_device());
  Framework framework;
  std::byte* const tensor = framework.allocate(kCount * 4);
  fakeCudaFail("cuMemHostAlloc:*:2");
  expect_all(refusal(cluster[0], framework, tensor),
             {"no pinned host memory", "device 0", "ulimit -l"});
}

TEST_F(StagedFailures, ACopyFailsOnOneRank) {
  Cluster cluster({{0, 1}}, with_fake_device());
  std::array<Framework, 2> frameworks;
  std::array<std::byte*, 2> tensors{};
  cluster.each([&](Rank rank, Engine& engine) {
    const auto r = static_cast<std::size_t>(rank);
    tensors[r] = frameworks[r].tensor(std::vector<float>(kCount));
    frameworks[r].synchronize();
    EXPECT_EQ(refusal(engine, frameworks[r], tensors[r]), "");
  });
  // What the next copy of whoever comes first meets: both are through with the first operation.
  fakeCudaFail("cuMemcpyAsync:1:2");
  std::array<std::string, 2> errors;
  cluster.each([&](Rank rank, Engine& engine) {
    const auto r = static_cast<std::size_t>(rank);
    errors[r] = refusal(engine, frameworks[r], tensors[r]);
  });
  for (const auto& error : errors) expect_all(error, {"cannot copy", "CUDA_ERROR_OUT_OF_MEMORY"});
}

TEST_F(StagedFailures, ARankIsLostMeanwhile) {
  EngineOptions options = with_fake_device();
  Cluster cluster({{0}, {1}, {2}}, options);
  Framework framework;
  cluster.each([&](Rank rank, Engine& engine) {
    Framework own;
    const std::int64_t count = 4 * static_cast<std::int64_t>(EngineDevice::kSlotBytes);
    std::byte* const tensor = own.tensor(std::vector<float>(static_cast<std::size_t>(count)));
    own.synchronize();
    for (int round = 0; round < 50; ++round) {
      auto handle =
          engine.submit({.name = "t",
                         .tensors = {on_device(own, tensor, tensor, DType::Float32, {count})},
                         .mode = Mode::Awaited});
      if (!handle) return;
      if (rank == 2 && round == 3) {
        engine.shutdown({.reason = wire::Departure::Reason::Failed, .text = "it died"});
      }
      const auto began = Clock::now();
      const auto work = finish(engine, *handle);
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
      if (work->error) {
        // The stream goes on: nothing waits for an operation that will never end.
        own.synchronize();
        return;
      }
    }
    ADD_FAILURE() << "nobody was told";
  });
}

TEST_F(StagedFailures, NothingStaysBehind) {
  FakeCudaCounters before;
  FakeCudaCounters after;
  fakeCudaCount(&before);
  {
    Cluster cluster({{0, 1}, {2}}, with_fake_device());
    cluster.each([&](Rank, Engine& engine) {
      Framework framework;
      std::byte* const tensor = framework.tensor(std::vector<float>(kCount));
      FakeCudaCounters first;
      for (int round = 0; round < 200; ++round) {
        run(engine, {.name = "t",
                     .tensors = {on_device(framework, tensor, tensor, DType::Float32, {kCount})}});
        run(engine, {.kind = Kind::Allgather,
                     .name = "g",
                     .tensors = {on_device(framework, tensor, nullptr, DType::Float32, {kCount})}});
        run(engine, {.name = "a",
                     .tensors = {on_device(framework, tensor, tensor, DType::Float32, {kCount})},
                     .op = ReduceOp::Max});
        if (round == 20) fakeCudaCount(&first);
      }
      FakeCudaCounters last;
      fakeCudaCount(&last);
      EXPECT_LE(last.pinned_bytes, first.pinned_bytes + (std::size_t{1} << 20));
      EXPECT_LE(last.events, first.events + 60);
    });
  }
  fakeCudaCount(&after);
  EXPECT_EQ(after.pinned, before.pinned);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.allocations, before.allocations);
}

}  // namespace
}  // namespace farandole::testing

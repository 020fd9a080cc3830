// What an adversary does to tensors on devices: every case ends on all ranks, in bounded time, with
// the right bits or one error, and leaves nothing.

#include <chrono>
#include <cstdlib>
#include <future>

#include "fake_nccl.h"
#include "framework.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const bool kThreeDevices = ::setenv("FAKE_CUDA_DEVICES", "3", 1) == 0;
constexpr std::size_t kCount = 1000;

Shape of(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

std::uint64_t batches(Engine& engine, const std::string& path) {
  const auto paths = engine.paths();
  const auto found = paths.find(path);
  return found == paths.end() ? 0 : found->second.operations;
}

class NcclFailures : public ::testing::Test {
 protected:
  NcclFailures() { reset(); }
  ~NcclFailures() override { reset(); }

  /// One allreduce of a rank on the device of its number; its error.
  static std::string once(Engine& engine, Rank rank) {
    Framework framework(rank);
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount, 1.0F));
    auto handle = engine.submit(
        {.name = "t",
         .tensors = {on_device(framework, tensor, tensor, DType::Float32, of(kCount))},
         .mode = Mode::Awaited});
    if (!handle) return handle.error().what();
    const auto work = finish(engine, *handle);
    if (work == nullptr) return "no end";
    return work->error ? work->error->what() : "";
  }

 private:
  static void reset() {
    fakeNcclFaults("", "", "");
    fakeCudaFail("");
    fakeCudaDelay(200);
  }
};

TEST_F(NcclFailures, NoRowsMayLieAnywhere) {
  Cluster cluster({{0}, {1}}, with_fake_device());
  cluster.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    constexpr std::size_t kBytes = std::size_t{1} << 20;
    std::byte* const memory = framework.allocate(kBytes);
    // As x[n:] of a tensor of n rows: where the memory of the device ends.
    std::byte* const in = rank == 0 ? memory + kBytes : memory;
    const auto work = run(
        engine,
        {.kind = Kind::Allgather,
         .name = "g",
         .tensors = {on_device(framework, in, nullptr, DType::Float32, {rank == 0 ? 0 : 512, 2})}});
    ASSERT_NE(work, nullptr);
    EXPECT_EQ(work->outputs.front().shape, (Shape{512, 2}));
    EXPECT_EQ(batches(engine, "nccl"), 1U);
  });
}

TEST_F(NcclFailures, WhoHadJoinedIsAskedAgain) {
  Cluster cluster({{0}, {1}}, with_fake_device());
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 1) {
      EXPECT_EQ(once(engine, rank), "");
    }
    run(engine, {.kind = Kind::Join});
    EXPECT_EQ(batches(engine, "nccl"), 0U);
    EXPECT_EQ(once(engine, rank), "");
    EXPECT_EQ(batches(engine, "nccl"), 1U);
  });
}

TEST_F(NcclFailures, ARankThatCannotConnectLeavesNothingOfTheOthers) {
  FakeNcclCounters before;
  fakeNcclCount(&before);
  {
    Cluster cluster({{0}, {1}, {2}}, with_fake_device());
    fakeNcclFaults("ncclCommInitRankConfig:3:2", "", "");
    cluster.each([&](Rank rank, Engine& engine) {
      const std::string error = once(engine, rank);
      EXPECT_NE(error.find("NCCL cannot connect the ranks"), std::string::npos) << error;
    });
  }
  FakeNcclCounters after;
  fakeNcclCount(&after);
  EXPECT_EQ(after.communicators, before.communicators);
}

TEST_F(NcclFailures, TheRankThatCannotNameTheSetIsNamed) {
  fakeNcclFaults("ncclGetUniqueId:*:2", "", "");
  Cluster cluster({{0}, {1}}, with_fake_device());
  cluster.each([&](Rank rank, Engine& engine) {
    const std::string error = once(engine, rank);
    EXPECT_NE(error.find("rank 0 on host host0"), std::string::npos) << error;
    EXPECT_NE(error.find("NCCL cannot name the set"), std::string::npos) << error;
  });
}

TEST_F(NcclFailures, WhoAsksForItHearsThatAnotherRefuses) {
  Cluster cluster({{0}, {1}}, with_fake_device(), -1, {}, {}, {}, 1, false,
                  [](EngineOptions& options) {
                    options.devices[Kind::Allreduce] = options.rank == 0 ? "NCCL" : "STAGED";
                  });
  cluster.each([&](Rank rank, Engine& engine) {
    const std::string error = once(engine, rank);
    EXPECT_NE(error.find("NCCL was asked for"), std::string::npos) << error;
    EXPECT_NE(error.find("the settings of the job say so"), std::string::npos) << error;
  });
}

TEST_F(NcclFailures, TheDefaultStreamOfEachDeviceIsItsOwn) {
  constexpr std::size_t kLong = 20000;
  Cluster cluster({{0}, {1}}, with_fake_device());
  fakeCudaDelay(3000);
  cluster.each([&](Rank rank, Engine& engine) {
    Framework one(0);
    Framework other(1);
    const DeviceContext& context = other.context();
    std::byte* const first = one.tensor(std::vector<float>(kLong, 1.0F));
    std::byte* const second = other.tensor(std::vector<float>(kLong, 1.0F));
    other.synchronize();
    for (int round = 0; round < 10; ++round) {
      {
        const DeviceContext::Current current(context);
        fakeCudaAdd(nullptr, reinterpret_cast<FakeCudaAddress>(second), kLong,
                    static_cast<float>(rank));
      }
      Submission both{.name = "g", .tensors = {}, .grouped = true, .op = ReduceOp::Max};
      both.tensors = {on_device(one, first, first, DType::Float32, of(kLong)),
                      on_device(other, second, second, DType::Float32, of(kLong))};
      both.tensors.back().stream = nullptr;
      ASSERT_NE(run(engine, std::move(both)), nullptr);
      std::vector<float> got(kLong);
      ASSERT_TRUE(static_cast<bool>(context.copy(got.data(), second, kLong * 4, nullptr)));
      const DeviceContext::Current current(context);
      ASSERT_EQ(context.driver().stream_synchronize(nullptr), 0);
      ASSERT_EQ(got, std::vector<float>(kLong, static_cast<float>(round + 2)));
    }
  });
}

TEST_F(NcclFailures, ARemovedSetWaitsForNoStream) {
  EngineOptions options = with_fake_device();
  options.devices.async_completion = true;
  Cluster cluster({{0}, {1}, {2}}, options);
  std::promise<void> removed;
  const auto gone = removed.get_future().share();
  cluster.each([&](Rank rank, Engine& engine) {
    Framework framework(rank);
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount, 1.0F));
    framework.synchronize();
    const auto added = run(engine, {.kind = Kind::AddProcessSet, .ranks = {0, 1}});
    ASSERT_NE(added, nullptr);
    const auto set = static_cast<std::int32_t>(*added->value);
    if (rank < 2) {
      if (rank == 0) fakeCudaHold(framework.fake());
      framework.fill(tensor, 4, 0);  // what the operation waits for
      run(engine, {.name = "t",
                   .tensors = {on_device(framework, tensor, tensor, DType::Float32, of(kCount))},
                   .process_set = set});
    }
    run(engine, {.kind = Kind::RemoveProcessSet, .root = set});
    std::vector<float> ones(4, 1.0F);
    run(engine, {.name = "after", .tensors = {tensor_of(ones)}});  // the engine goes on
    if (rank == 1) removed.set_value();
    if (rank == 0) {
      EXPECT_EQ(gone.wait_for(seconds(10)), std::future_status::ready);
      fakeCudaRelease(framework.fake());
    }
  });
}

TEST_F(NcclFailures, AnEngineEndsBeforeAKernelThatDoesNot) {
  std::array<Framework, 2> frameworks{Framework(0), Framework(1)};
  EngineOptions options = with_fake_device();
  options.operation_timeout = seconds(4);
  options.devices.async_completion = true;
  std::array<std::byte*, 2> tensors{};
  auto cluster = std::make_unique<Cluster>(Groups{{0}, {1}}, options);
  cluster->each([&](Rank rank, Engine& engine) {
    Framework& framework = frameworks[static_cast<std::size_t>(rank)];
    std::byte*& tensor = tensors[static_cast<std::size_t>(rank)];
    tensor = framework.tensor(std::vector<float>(kCount, 1.0F));
    framework.synchronize();
    fakeCudaHold(framework.fake());
    framework.add(reinterpret_cast<FakeCudaAddress>(tensor), kCount, 1.0F);
    run(engine, {.name = "t",
                 .tensors = {on_device(framework, tensor, tensor, DType::Float32, of(kCount))}});
    EXPECT_EQ(batches(engine, "nccl"), 1U);
  });
  const auto began = Clock::now();
  ::testing::internal::CaptureStderr();
  cluster.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(Clock::now() - began, seconds(40));
  EXPECT_NE(said.find("Its memory is left behind"), std::string::npos) << said;
  for (Framework& framework : frameworks) fakeCudaRelease(framework.fake());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    // The operation that was on the stream goes on, and has its result.
    EXPECT_EQ(frameworks[rank].read<float>(tensors[rank], 1), std::vector<float>(1, 4.0F));
  }
}

TEST_F(NcclFailures, ACommunicatorThatNeverConnectsIsOverdue) {
  EngineOptions options = with_fake_device();
  options.operation_timeout = seconds(2);
  Cluster cluster({{0}, {1}}, options);
  fakeNcclFaults("", "ncclCommInitRankConfig:1", "");
  cluster.each([&](Rank rank, Engine& engine) {
    const auto began = Clock::now();
    const std::string error = once(engine, rank);
    EXPECT_NE(error.find("NCCL"), std::string::npos) << error;
    EXPECT_NE(error.find("connect"), std::string::npos) << error;
    EXPECT_LT(Clock::now() - began, seconds(15));
  });
}

TEST_F(NcclFailures, ALostRankIsNamedThoughNcclFailsBecauseOfIt) {
  EngineOptions options = with_fake_device();
  options.heartbeat.limit = Duration::zero();  // nobody looks without a reason
  Cluster cluster({{0, 1}}, options);
  cluster.each([](Rank rank, Engine& engine) { EXPECT_EQ(once(engine, rank), ""); });
  fakeNcclFaults("", "ncclAllReduce:*", "");
  std::string error;
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 0) error = once(engine, rank);
    if (rank == 1) {
      std::jthread waiting([&] { once(engine, rank); });
      const auto deadline = Clock::now() + seconds(30);
      while (fakeNcclCalls("ncclAllReduce") < 2 && Clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      std::size_t looks = 0;
      do {  // until both wait for the device, which never comes to an end
        looks = fakeNcclCalls("ncclCommGetAsyncError");
        std::this_thread::sleep_for(milliseconds(300));
      } while (fakeNcclCalls("ncclCommGetAsyncError") != looks && Clock::now() < deadline);
      fakeNcclFaults("ncclCommGetAsyncError:*:6", "", "");
      cluster.cut(1);
    }
  });
  EXPECT_NE(error.find("rank 1 on host host0 is gone"), std::string::npos) << error;
}

TEST_F(NcclFailures, AnAddressThatTheDriverDoesNotTellOfIsNotReadOnTheHost) {
  EngineOptions options = with_fake_device();
  options.devices[Kind::Allreduce] = "STAGED";
  Cluster cluster({{0}, {1}}, options);
  fakeCudaFail("cuPointerGetAttributes:*:999");
  cluster.each([&](Rank rank, Engine& engine) { EXPECT_EQ(once(engine, rank), ""); });
}

}  // namespace
}  // namespace farandole::testing

// The NCCL that other tests use instead of one: what it computes, what waits, what fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.h"
#include "fake_driver.h"
#include "fake_nccl.h"
#include "patience.h"
#include "run_again.h"

namespace farandole {
namespace {

using testing::driver;
using testing::end_of_child;
using testing::kRan;
using testing::run_again;

constexpr int kRanks = 3;
/// More than what goes over at once, and no multiple of it.
constexpr std::size_t kLarge = 100'001;

/// A stream of a device, current on this thread as long as it lives.
class Device {
 public:
  explicit Device(int device) : device_(device) {
    EXPECT_EQ(driver().init(0), kDriverSuccess);
    EXPECT_EQ(driver().primary_retain(&context_, device), kDriverSuccess);
    EXPECT_EQ(driver().context_push(context_), kDriverSuccess);
    EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kDriverSuccess);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    EXPECT_EQ(driver().stream_synchronize(stream), kDriverSuccess);
    EXPECT_EQ(driver().context_pop(nullptr), kDriverSuccess);
    EXPECT_EQ(driver().primary_release(device_), kDriverSuccess);
  }

  template <typename T>
  [[nodiscard]] void* put(const std::vector<T>& numbers) const {
    DriverAddress address = 0;
    const std::size_t bytes = numbers.size() * sizeof(T);
    EXPECT_EQ(driver().allocate(&address, bytes), kDriverSuccess);
    EXPECT_EQ(
        driver().copy(address, reinterpret_cast<DriverAddress>(numbers.data()), bytes, stream),
        kDriverSuccess);
    return reinterpret_cast<void*>(address);
  }
  template <typename T>
  [[nodiscard]] std::vector<T> get(const void* address, std::size_t count) const {
    std::vector<T> numbers(count);
    EXPECT_EQ(driver().copy(reinterpret_cast<DriverAddress>(numbers.data()),
                            reinterpret_cast<DriverAddress>(address), count * sizeof(T), stream),
              kDriverSuccess);
    return numbers;
  }

  DriverStream stream = nullptr;

 private:
  const int device_;
  DriverContext context_ = nullptr;
};

struct Rank {
  int rank;
  ncclComm_t comm;
  const Device& device;
  void* stream;
};

/// Each rank on a thread and a device of its own.
void on_threads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

void on_ranks(int ranks, const std::function<void(Rank& rank)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  on_threads(ranks, [&](int number) {
    const Device device(number);
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, number), ncclSuccess);
    Rank rank{number, comm, device, device.stream};
    body(rank);
    if (rank.comm != nullptr) {
      EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
    }
  });
}

int async_error(ncclComm_t comm) {
  int error = -1;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
  return error;
}

/// The first answer that is not ncclInProgress.
int settled(ncclComm_t comm) {
  const TimePoint deadline = Clock::now() + testing::kPatience;
  int error = ncclInProgress;
  while (error == ncclInProgress && Clock::now() < deadline) {
    error = async_error(comm);
    std::this_thread::yield();
  }
  return error;
}

/// The asynchronous error of that communicator, once there is one.
int failed(ncclComm_t comm) {
  const TimePoint deadline = Clock::now() + testing::kPatience;
  int error = ncclSuccess;
  while (error == ncclSuccess && Clock::now() < deadline) {
    error = async_error(comm);
    std::this_thread::yield();
  }
  return error;
}

class FakeNccl : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("FAKE_CUDA_DEVICES", "4", 0); }
  void TearDown() override {
    fakeNcclFaults(nullptr, nullptr, nullptr);
    FakeNcclCounters left;
    fakeNcclCount(&left);
    EXPECT_EQ(left.communicators, 0U);
  }
};

/// rank r has r + 1, r + 2, ...
template <typename T>
std::vector<T> input_of(int rank, std::size_t count) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<T>((i + static_cast<std::size_t>(rank) + 1) % 20);
  }
  return numbers;
}

template <typename T>
std::vector<T> expected(int op, std::size_t count) {
  // For an average numbers with a fraction are divided before they are added, integers after.
  const bool before = op == ncclAvg && std::is_floating_point_v<T>;
  const auto brought = [&](int rank) {
    auto numbers = input_of<T>(rank, count);
    if (before) {
      for (T& number : numbers) number = number / T{kRanks};
    }
    return numbers;
  };
  auto result = brought(0);
  for (int rank = 1; rank < kRanks; ++rank) {
    const auto other = brought(rank);
    for (std::size_t i = 0; i < count; ++i) {
      if (op == ncclSum || op == ncclAvg) result[i] = static_cast<T>(result[i] + other[i]);
      if (op == ncclProd) result[i] = static_cast<T>(result[i] * other[i]);
      if (op == ncclMax) result[i] = std::max(result[i], other[i]);
      if (op == ncclMin) result[i] = std::min(result[i], other[i]);
    }
  }
  if (op == ncclAvg && !before) {
    for (T& number : result) number = static_cast<T>(number / T{kRanks});
  }
  return result;
}

template <typename T>
void check_allreduce(const Rank& rank, int type) {
  for (const int op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, kLarge}) {
      void* buffer = rank.device.put(input_of<T>(rank.rank, count));
      ASSERT_EQ(ncclAllReduce(buffer, buffer, count, type, op, rank.comm, rank.stream),
                ncclSuccess);
      ASSERT_EQ(rank.device.get<T>(buffer, count), expected<T>(op, count)) << type << " " << op;
    }
  }
}

TEST_F(FakeNccl, ReducesEveryTypeOfTheProcessor) {
  on_ranks(kRanks, [](const Rank& rank) {
    check_allreduce<std::int8_t>(rank, ncclInt8);
    check_allreduce<std::uint8_t>(rank, ncclUint8);
    check_allreduce<std::int32_t>(rank, ncclInt32);
    check_allreduce<std::uint32_t>(rank, ncclUint32);
    check_allreduce<std::int64_t>(rank, ncclInt64);
    check_allreduce<std::uint64_t>(rank, ncclUint64);
    check_allreduce<float>(rank, ncclFloat32);
    check_allreduce<double>(rank, ncclFloat64);
  });
}

/// Bits of a short type: a + b = sum, rounded.
template <typename Bits>
void check_sum(const Rank& rank, int type, Bits a, Bits b, Bits sum) {
  void* buffer = rank.device.put(std::vector<Bits>{rank.rank == 0 ? a : b});
  ASSERT_EQ(ncclAllReduce(buffer, buffer, 1, type, ncclSum, rank.comm, rank.stream), ncclSuccess);
  EXPECT_EQ(rank.device.get<Bits>(buffer, 1)[0], sum) << type << ": " << a << " + " << b;
}

TEST_F(FakeNccl, RoundsShortNumbersToTheNearest) {
  on_ranks(2, [](const Rank& rank) {
    using Half = std::uint16_t;
    check_sum<Half>(rank, ncclFloat16, 0x3C00, 0x4000, 0x4200);   // 1 + 2 = 3
    check_sum<Half>(rank, ncclFloat16, 0x6800, 0x3C00, 0x6800);   // 2048 + 1: a tie, to even
    check_sum<Half>(rank, ncclFloat16, 0x6801, 0x3C00, 0x6802);   // 2050 + 1: the other way
    check_sum<Half>(rank, ncclFloat16, 0x7BFF, 0x7BFF, 0x7C00);   // beyond the largest
    check_sum<Half>(rank, ncclFloat16, 0x0001, 0x0002, 0x0003);   // the smallest
    check_sum<Half>(rank, ncclFloat16, 0x03FF, 0x0001, 0x0400);   // the first normal one
    check_sum<Half>(rank, ncclFloat16, 0xC000, 0x3C00, 0xBC00);   // -2 + 1
    check_sum<Half>(rank, ncclBfloat16, 0x3F80, 0x4000, 0x4040);  // 1 + 2 = 3
    check_sum<Half>(rank, ncclBfloat16, 0x4380, 0x3F80, 0x4380);  // 256 + 1: a tie, to even
    using Byte = std::uint8_t;
    check_sum<Byte>(rank, ncclFloat8e4m3, 0x38, 0x40, 0x44);  // 1 + 2 = 3
    check_sum<Byte>(rank, ncclFloat8e4m3, 0x7E, 0x7E, 0x7E);  // 448 is the largest
    check_sum<Byte>(rank, ncclFloat8e5m2, 0x3C, 0x40, 0x42);  // 1 + 2 = 3
  });
}

TEST_F(FakeNccl, MovesWhatEachCollectiveIsFor) {
  on_ranks(kRanks, [](const Rank& rank) {
    const auto own = input_of<float>(rank.rank, kLarge);
    void* input = rank.device.put(own);
    void* output = rank.device.put(std::vector<float>(kLarge * kRanks));

    ASSERT_EQ(ncclBroadcast(input, output, kLarge, ncclFloat32, 1, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.device.get<float>(output, kLarge), input_of<float>(1, kLarge));

    ASSERT_EQ(ncclReduce(input, rank.rank == 2 ? output : nullptr, kLarge, ncclFloat32, ncclSum, 2,
                         rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.device.get<float>(output, kLarge),
              rank.rank == 2 ? expected<float>(ncclSum, kLarge) : input_of<float>(1, kLarge));

    ASSERT_EQ(ncclAllGather(input, output, kLarge, ncclFloat32, rank.comm, rank.stream),
              ncclSuccess);
    std::vector<float> all;
    for (int i = 0; i < kRanks; ++i) {
      const auto part = input_of<float>(i, kLarge);
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_EQ(rank.device.get<float>(output, all.size()), all);

    // Each rank has the same: part p of the result is three times part p of `all`.
    ASSERT_EQ(
        ncclReduceScatter(output, input, kLarge, ncclFloat32, ncclSum, rank.comm, rank.stream),
        ncclSuccess);
    auto tripled = own;
    for (float& number : tripled) number *= kRanks;
    EXPECT_EQ(rank.device.get<float>(input, kLarge), tripled);
  });
}

TEST_F(FakeNccl, MultipliesBeforeItAdds) {
  on_ranks(2, [](const Rank& rank) {
    float factor = rank.rank == 0 ? 0.5F : 2.0F;
    void* device_factor = rank.device.put(std::vector<float>{factor});
    void* buffer = rank.device.put(std::vector<float>{10.0F});
    int of_host = 0;
    int of_device = 0;
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&of_host, &factor, ncclFloat32, ncclScalarHostImmediate,
                                       rank.comm),
              ncclSuccess);
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&of_device, device_factor, ncclFloat32, ncclScalarDevice,
                                       rank.comm),
              ncclSuccess);
    factor = 100.0F;
    ASSERT_EQ(ncclAllReduce(buffer, buffer, 1, ncclFloat32, of_host, rank.comm, rank.stream),
              ncclSuccess);
    ASSERT_EQ(ncclAllReduce(buffer, buffer, 1, ncclFloat32, of_device, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.device.get<float>(buffer, 1)[0], 62.5F);
    ASSERT_EQ(ncclRedOpDestroy(of_host, rank.comm), ncclSuccess);
    EXPECT_EQ(ncclRedOpDestroy(of_host, rank.comm), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(buffer, buffer, 1, ncclFloat32, of_host, rank.comm, rank.stream),
              ncclInvalidArgument);
  });
}

TEST_F(FakeNccl, SendsOfAGroupGoOnTogether) {
  on_ranks(kRanks, [](const Rank& rank) {
    std::vector<void*> sources;
    std::vector<void*> targets;
    for (int peer = 0; peer < kRanks; ++peer) {
      sources.push_back(rank.device.put(std::vector<int>(kLarge, 10 * rank.rank + peer)));
      targets.push_back(rank.device.put(std::vector<int>(kLarge)));
    }
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < kRanks; ++peer) {  // itself, too
      const auto at = static_cast<std::size_t>(peer);
      EXPECT_EQ(ncclSend(sources[at], kLarge, ncclInt32, peer, rank.comm, rank.stream),
                ncclSuccess);
      EXPECT_EQ(ncclRecv(targets[at], kLarge, ncclInt32, peer, rank.comm, rank.stream),
                ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    for (int peer = 0; peer < kRanks; ++peer) {
      EXPECT_EQ(rank.device.get<int>(targets[static_cast<std::size_t>(peer)], kLarge),
                std::vector<int>(kLarge, 10 * peer + rank.rank));
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "there is none";
  });
}

TEST_F(FakeNccl, HoldsTheStreamAndNotTheHost) {
  std::promise<void> first_waits;
  const std::shared_future<void> waits = first_waits.get_future().share();
  on_ranks(2, [&](const Rank& rank) {
    void* buffer = rank.device.put(std::vector<int>{rank.rank});
    if (rank.rank == 1) {
      ASSERT_EQ(waits.wait_for(testing::kPatience), std::future_status::ready);
    }
    DriverEvent event = nullptr;
    ASSERT_EQ(driver().event_create(&event, kEventDisableTiming), kDriverSuccess);
    ASSERT_EQ(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    ASSERT_EQ(driver().event_record(event, rank.device.stream), kDriverSuccess);
    if (rank.rank == 0) {
      EXPECT_EQ(driver().event_query(event), kDriverNotReady);
      first_waits.set_value();
    }
    ASSERT_EQ(driver().event_synchronize(event), kDriverSuccess);
    EXPECT_EQ(rank.device.get<int>(buffer, 1)[0], 1);
  });
}

TEST_F(FakeNccl, RunsInTheOrderOfCallsOnWhateverStreams) {
  on_ranks(2, [](const Rank& rank) {
    DriverStream other = nullptr;
    ASSERT_EQ(driver().stream_create(&other, kStreamNonBlocking), kDriverSuccess);
    // The two ranks delay their streams differently; in another order these would not match.
    for (int i = 0; i < 20; ++i) {
      void* small = rank.device.put(std::vector<int>{i});
      void* large = rank.device.put(std::vector<int>(100, i));
      ASSERT_EQ(driver().stream_synchronize(rank.device.stream), kDriverSuccess);
      const bool swapped = (i + rank.rank) % 2 == 0;
      ASSERT_EQ(ncclAllReduce(small, small, 1, ncclInt32, ncclSum, rank.comm,
                              swapped ? other : rank.stream),
                ncclSuccess);
      ASSERT_EQ(ncclAllReduce(large, large, 100, ncclInt32, ncclSum, rank.comm,
                              swapped ? rank.stream : other),
                ncclSuccess);
      ASSERT_EQ(driver().stream_synchronize(rank.device.stream), kDriverSuccess);
      ASSERT_EQ(driver().stream_synchronize(other), kDriverSuccess);
      ASSERT_EQ(rank.device.get<int>(small, 1)[0], 2 * i);
      ASSERT_EQ(rank.device.get<int>(large, 100)[99], 2 * i);
    }
    EXPECT_EQ(async_error(rank.comm), ncclSuccess);
  });
}

TEST_F(FakeNccl, KnowsItself) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, 22703);
  EXPECT_STREQ(ncclGetErrorString(ncclInternalError), "internal error");
  ncclComm_t gone = nullptr;
  on_ranks(kRanks, [&](const Rank& rank) {
    int count = 0;
    int device = -1;
    int number = -1;
    EXPECT_EQ(ncclCommCount(rank.comm, &count), ncclSuccess);
    EXPECT_EQ(ncclCommCuDevice(rank.comm, &device), ncclSuccess);
    EXPECT_EQ(ncclCommUserRank(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(count, kRanks);
    EXPECT_EQ(device, rank.rank);
    EXPECT_EQ(number, rank.rank);
    EXPECT_EQ(ncclCommFinalize(rank.comm), ncclSuccess);
    if (rank.rank == 0) gone = rank.comm;
  });
  int count = 0;
  EXPECT_EQ(ncclCommCount(gone, &count), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(gone), ncclInvalidArgument);
}

TEST_F(FakeNccl, RefusesTwoRanksOnOneDevice) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  on_threads(2, [&](int rank) {
    const Device device(0);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
    EXPECT_EQ(comm, nullptr);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("Duplicate GPU"), std::string::npos);
  });
}

TEST_F(FakeNccl, RefusesMemoryOfTheHost) {
  on_ranks(1, [](const Rank& rank) {
    std::vector<float> pageable(4);
    EXPECT_EQ(ncclAllReduce(pageable.data(), pageable.data(), 4, ncclFloat32, ncclSum, rank.comm,
                            rank.stream),
              ncclInvalidArgument);
    void* buffer = rank.device.put(pageable);
    EXPECT_EQ(ncclAllReduce(buffer, buffer, 5, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclInvalidArgument)
        << "longer than the buffer";
    EXPECT_EQ(ncclAllReduce(buffer, buffer, 4, 99, ncclSum, rank.comm, rank.stream),
              ncclInvalidArgument);
  });
}

TEST_F(FakeNccl, MismatchIsAnAsynchronousErrorOfAll) {
  on_ranks(2, [](Rank& rank) {
    void* buffer = rank.device.put(std::vector<float>(8));
    ASSERT_EQ(ncclAllReduce(buffer, buffer, rank.rank == 0 ? 8 : 7, ncclFloat32, ncclSum, rank.comm,
                            rank.stream),
              ncclSuccess);
    EXPECT_EQ(failed(rank.comm), ncclInternalError);
    EXPECT_EQ(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclInternalError);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST_F(FakeNccl, AbortLetsTheStreamGoOn) {
  on_ranks(2, [](Rank& rank) {
    if (rank.rank == 1) return;  // never comes
    void* buffer = rank.device.put(std::vector<float>(8));
    ASSERT_EQ(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    ASSERT_EQ(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(async_error(rank.comm), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    EXPECT_EQ(driver().stream_synchronize(rank.device.stream), kDriverSuccess);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclInvalidArgument);
    rank.comm = nullptr;
  });
}

TEST_F(FakeNccl, FaultsComeWithTheCallThatWasNamed) {
  fakeNcclFaults("ncclBroadcast:2:2", "ncclAllReduce:2", "ncclAllGather:1:6");
  on_ranks(1, [](Rank& rank) {
    void* buffer = rank.device.put(std::vector<float>(8));
    const std::array results{0, 2, 0};
    for (const int result : results) {
      EXPECT_EQ(ncclBroadcast(buffer, buffer, 8, ncclFloat32, 0, rank.comm, rank.stream), result);
    }
    EXPECT_EQ(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(driver().stream_synchronize(rank.device.stream), kDriverSuccess);
    EXPECT_EQ(ncclAllGather(buffer, buffer, 8, ncclFloat32, rank.comm, rank.stream), ncclSuccess);
    EXPECT_EQ(failed(rank.comm), ncclRemoteError);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    EXPECT_EQ(driver().stream_synchronize(rank.device.stream), kDriverSuccess);
    rank.comm = nullptr;
  });
  on_ranks(1, [](Rank& rank) {
    void* buffer = rank.device.put(std::vector<float>(8));
    DriverEvent event = nullptr;
    ASSERT_EQ(driver().event_create(&event, kEventDisableTiming), kDriverSuccess);
    ASSERT_EQ(fakeNcclCalls("ncclAllReduce"), 1U);
    EXPECT_EQ(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    ASSERT_EQ(driver().event_record(event, rank.device.stream), kDriverSuccess);
    EXPECT_EQ(driver().event_query(event), kDriverNotReady);
    EXPECT_EQ(async_error(rank.comm), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    EXPECT_EQ(driver().event_synchronize(event), kDriverSuccess);
    rank.comm = nullptr;
  });
}

ncclConfig_t config_without_blocking() {
  ncclConfig_t config{};
  config.size = sizeof config;
  config.magic = FAKE_NCCL_CONFIG_MAGIC;
  config.version = 22703;
  config.cgaClusterSize = config.minCTAs = config.maxCTAs = config.splitShare =
      NCCL_CONFIG_UNDEF_INT;
  return config;
}

TEST_F(FakeNccl, WithoutBlockingCallsAreInProgress) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  on_threads(2, [&](int number) {
    const Device device(number);
    ncclConfig_t config = config_without_blocking();
    ncclComm_t comm = nullptr;
    void* buffer = device.put(std::vector<int>{number});
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, number, &config), ncclInProgress);
    ASSERT_NE(comm, nullptr);
    ASSERT_EQ(settled(comm), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, comm, device.stream),
              ncclInProgress);
    ASSERT_EQ(settled(comm), ncclSuccess);
    EXPECT_EQ(device.get<int>(buffer, 1)[0], 1);
    EXPECT_TRUE(ncclCommFinalize(comm) == ncclSuccess || settled(comm) == ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST_F(FakeNccl, ACommunicatorThatWaitsForOthersCanBeAborted) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const Device device(0);
  ncclConfig_t config = config_without_blocking();
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  void* buffer = device.put(std::vector<int>{1});
  EXPECT_EQ(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, comm, device.stream),
            ncclInvalidArgument);
  EXPECT_EQ(async_error(comm), ncclInProgress);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  config.magic = 0;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
}

TEST_F(FakeNccl, OneThreadMakesSeveralCommunicatorsInAGroup) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const Device first(0);
  ncclComm_t one = nullptr;
  ncclComm_t other = nullptr;
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclCommInitRank(&one, 2, id, 0), ncclSuccess);
  {
    const Device second(1);
    ASSERT_EQ(ncclCommInitRank(&other, 2, id, 1), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    void* there = second.put(std::vector<int>{4});
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclSend(there, 1, ncclInt32, 0, other, second.stream), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    ASSERT_EQ(driver().stream_synchronize(second.stream), kDriverSuccess);
    ASSERT_EQ(ncclCommDestroy(other), ncclSuccess);
  }
  void* here = first.put(std::vector<int>{0});
  ASSERT_EQ(ncclRecv(here, 1, ncclInt32, 1, one, first.stream), ncclSuccess);
  EXPECT_EQ(first.get<int>(here, 1)[0], 4);
  ASSERT_EQ(ncclCommDestroy(one), ncclSuccess);
}

// ------------------------------------------------------------------------------ other processes

constexpr std::size_t kIdBytes = sizeof(ncclUniqueId);

std::string text_of(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal)
    text += std::to_string(static_cast<unsigned char>(byte)) + " ";
  return text;
}

ncclUniqueId id_of(const char* text) {
  ncclUniqueId id;
  char* next = nullptr;
  for (std::size_t i = 0; i < kIdBytes; ++i) {
    id.internal[i] = static_cast<char>(std::strtol(text, &next, 10));
    text = next;
  }
  return id;
}

TEST_F(FakeNccl, DISABLED_ChildIsRankOne) {
  const ncclUniqueId id = id_of(std::getenv("TEST_ID"));
  {
    const Device device(0);
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, 2, id, 1),
              std::strtol(std::getenv("TEST_RESULT"), nullptr, 10));
    if (comm != nullptr) {
      void* buffer = device.put(std::vector<float>(kLarge, 2.0F));
      ASSERT_EQ(ncclAllReduce(buffer, buffer, kLarge, ncclFloat32, ncclSum, comm, device.stream),
                ncclSuccess);
      ASSERT_EQ(device.get<float>(buffer, kLarge), std::vector<float>(kLarge, 3.0F));
      ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
    }
  }
  end_of_child();
}

/// Rank 0 here, rank 1 as another program that sees the device of that number first.
void with_another_process(const std::string& child_sees, const std::string& shared, int result) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::jthread child([&] {
    EXPECT_EQ(
        run_again("FakeNccl.DISABLED_ChildIsRankOne",
                  {"TEST_ID=" + text_of(id), "TEST_RESULT=" + std::to_string(result),
                   "CUDA_VISIBLE_DEVICES=" + child_sees, "FAKE_NCCL_SHARED_DEVICES=" + shared}),
        kRan);
  });
  const Device device(0);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, 2, id, 0), result);
  if (comm == nullptr) return;
  void* buffer = device.put(std::vector<float>(kLarge, 1.0F));
  ASSERT_EQ(ncclAllReduce(buffer, buffer, kLarge, ncclFloat32, ncclSum, comm, device.stream),
            ncclSuccess);
  EXPECT_EQ(device.get<float>(buffer, kLarge), std::vector<float>(kLarge, 3.0F));
  ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST_F(FakeNccl, RanksAreProcesses) { with_another_process("1", "0", ncclSuccess); }

TEST_F(FakeNccl, ProcessesOnOneDeviceAreRefused) {
  with_another_process("0", "0", ncclInvalidUsage);
}

TEST_F(FakeNccl, ProcessesOnOneDeviceMayBeAllowed) {
  ASSERT_EQ(::setenv("FAKE_NCCL_SHARED_DEVICES", "1", 1), 0);
  with_another_process("0", "1", ncclSuccess);
  ASSERT_EQ(::unsetenv("FAKE_NCCL_SHARED_DEVICES"), 0);
}

}  // namespace
}  // namespace farandole

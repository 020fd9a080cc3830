// Tensors in memory of a device, by way of the host: engines on threads, over the fake driver.

#include <array>
#include <numeric>
#include <random>

#include "framework.h"
#include "random_numbers.h"

namespace farandole::testing {
namespace {

std::vector<float> numbers(std::size_t count, unsigned seed) {
  return reference::normal_numbers(count, seed);
}

std::vector<float> on_host(Engine& engine, Submission submission, std::vector<float> values,
                           Shape shape) {
  submission.tensors = {{.in = reinterpret_cast<std::byte*>(values.data()),
                         .out = reinterpret_cast<std::byte*>(values.data()),
                         .shape = std::move(shape)}};
  run(engine, std::move(submission));
  return values;
}

class Staged : public ::testing::TestWithParam<Groups> {
 protected:
  Cluster cluster_{GetParam(), with_fake_device()};
};

TEST_P(Staged, GivesTheBitsOfHostTensors) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000},
                                  EngineDevice::kSlotBytes / 4, EngineDevice::kSlotBytes + 333}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
      cluster_.each([&](Rank rank, Engine& engine) {
        Framework framework;
        const auto mine = numbers(count, 7 + static_cast<unsigned>(rank));
        const Shape shape{static_cast<std::int64_t>(count)};
        const auto expected =
            on_host(engine, {.name = "host", .op = op, .prescale = 0.3}, mine, shape);
        std::byte* const in = framework.tensor(mine);
        std::byte* const out = framework.allocate(count * 4);
        const auto work =
            run(engine, {.name = "device",
                         .tensors = {on_device(framework, in, out, DType::Float32, shape)},
                         .op = op,
                         .prescale = 0.3});
        ASSERT_NE(work, nullptr);
        EXPECT_EQ(work->ends.size(), 1U);
        EXPECT_EQ(framework.read<float>(out, count), expected);
        EXPECT_EQ(framework.read<float>(in, count), mine);
      });
    }
  }
}

TEST_P(Staged, AveragesIntegersExactly) {
  constexpr std::size_t kRows = 1001;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    const auto size = static_cast<std::size_t>(cluster_.size());
    const auto self = static_cast<std::size_t>(rank);
    std::vector<std::uint8_t> mine(kRows, 200);
    std::vector<std::uint8_t> expected(kRows);
    for (std::size_t i = 0; i < kRows; ++i) {
      mine[i] = static_cast<std::uint8_t>(255 - (self + i) % 5);
      std::size_t sum = 0;
      for (std::size_t other = 0; other < size; ++other) sum += 255 - (other + i) % 5;
      expected[i] = static_cast<std::uint8_t>(sum / size);
    }
    for (const Kind kind : {Kind::Allreduce, Kind::Reduce, Kind::Reducescatter}) {
      std::size_t first = 0;
      std::size_t rows = kRows;
      if (kind == Kind::Reducescatter) {
        first = kRows / size * self + std::min(self, kRows % size);
        rows = kRows / size + (self < kRows % size ? 1 : 0);
      }
      std::byte* const in = framework.tensor(mine);
      std::byte* const out = framework.tensor(std::vector<std::uint8_t>(kRows, 7));
      run(engine, {.kind = kind,
                   .name = "t",
                   .tensors = {on_device(framework, in, out, DType::UInt8, {kRows})},
                   .op = ReduceOp::Average,
                   .root = kind == Kind::Reduce ? cluster_.size() - 1 : -1});
      auto got = framework.read<std::uint8_t>(out, kRows);
      EXPECT_EQ(
          std::vector<std::uint8_t>(got.begin() + static_cast<std::ptrdiff_t>(rows), got.end()),
          std::vector<std::uint8_t>(kRows - rows, 7));  // nothing beyond the share
      got.resize(rows);
      auto wanted = kind == Kind::Reduce && rank != cluster_.size() - 1 ? mine : expected;
      wanted = {wanted.begin() + static_cast<std::ptrdiff_t>(first),
                wanted.begin() + static_cast<std::ptrdiff_t>(first + rows)};
      EXPECT_EQ(got, wanted);
    }
  });
}

TEST_P(Staged, ComesAfterWhatTheStreamHasAndBeforeWhatComes) {
  constexpr std::size_t kCount = 50000;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    const std::vector<float> zeros(kCount, 0.0F);
    std::byte* const tensor = framework.tensor(zeros);
    const auto address = reinterpret_cast<FakeCudaAddress>(tensor);
    float expected = 0.0F;
    for (int round = 0; round < 5; ++round) {
      // Only the stream orders these: nobody waits on the host.
      framework.add(address, kCount, static_cast<float>(rank + 1));
      run(engine, {.name = "t",
                   .tensors = {on_device(framework, tensor, tensor, DType::Float32,
                                         {static_cast<std::int64_t>(kCount)})},
                   .op = ReduceOp::Max});
      expected += static_cast<float>(cluster_.size());
    }
    EXPECT_EQ(framework.read<float>(tensor, kCount), std::vector<float>(kCount, expected));
  });
}

TEST_P(Staged, GathersRowsIntoMemoryThatIsGivenAtTheEnd) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    const std::size_t rows = static_cast<std::size_t>(rank) * 70000 + 3;
    const auto mine = numbers(rows * 5, static_cast<unsigned>(rank));
    const auto work =
        run(engine, {.kind = Kind::Allgather,
                     .name = "g",
                     .tensors = {on_device(framework, framework.tensor(mine), nullptr,
                                           DType::Float32, {static_cast<std::int64_t>(rows), 5})}});
    ASSERT_NE(work, nullptr);
    Output& output = work->outputs.front();
    ASSERT_NE(output.device, nullptr);
    std::vector<float> expected;
    for (Rank other = 0; other < cluster_.size(); ++other) {
      const auto theirs =
          numbers((static_cast<std::size_t>(other) * 70000 + 3) * 5, static_cast<unsigned>(other));
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    EXPECT_EQ(output.shape, (Shape{static_cast<std::int64_t>(expected.size() / 5), 5}));
    std::byte* const out = framework.allocate(expected.size() * 4);
    ASSERT_TRUE(static_cast<bool>(output.device->deliver(
        std::move(output.buffer), expected.size() * 4, out, framework.stream())));
    EXPECT_EQ(framework.read<float>(out, expected.size()), expected);
  });
}

TEST_P(Staged, BroadcastsFromAndToTheDevice) {
  constexpr std::size_t kBytes = EngineDevice::kSlotBytes * 3 + 17;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    const Rank root = cluster_.size() - 1;
    std::vector<std::uint8_t> mine(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) mine[i] = static_cast<std::uint8_t>(i * 7 + 1);
    auto expected = mine;
    if (rank != root) std::ranges::fill(mine, std::uint8_t{0});
    std::byte* const in = framework.tensor(mine);
    for (const bool in_place : {false, true}) {
      std::byte* const out = in_place ? in : framework.allocate(kBytes);
      run(engine, {.kind = Kind::Broadcast,
                   .name = "b",
                   .tensors = {on_device(framework, in, out, DType::UInt8,
                                         {static_cast<std::int64_t>(kBytes)})},
                   .root = root});
      EXPECT_EQ(framework.read<std::uint8_t>(out, kBytes), expected);
    }
  });
}

TEST_P(Staged, ScattersAndSwapsRows) {
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    const auto size = static_cast<std::size_t>(cluster_.size());
    const std::size_t rows = 400001;  // not a multiple of the members
    const Shape shape{static_cast<std::int64_t>(rows), 2};
    const auto mine = numbers(rows * 2, static_cast<unsigned>(rank));
    const auto sums = on_host(engine, {.name = "sums", .op = ReduceOp::Average}, mine, shape);
    const std::size_t first = rows / size * static_cast<std::size_t>(rank) +
                              std::min(static_cast<std::size_t>(rank), rows % size);
    const std::size_t own = rows / size + (static_cast<std::size_t>(rank) < rows % size ? 1 : 0);
    std::byte* const in = framework.tensor(mine);
    for (const bool given : {true, false}) {
      std::byte* const out = framework.allocate(own * 8);
      const auto work =
          run(engine,
              {.kind = Kind::Reducescatter,
               .name = "rs",
               .tensors = {on_device(framework, in, given ? out : nullptr, DType::Float32, shape)},
               .op = ReduceOp::Average});
      ASSERT_NE(work, nullptr);
      if (!given) {
        Output& output = work->outputs.front();
        ASSERT_NE(output.device, nullptr);
        ASSERT_TRUE(static_cast<bool>(
            output.device->deliver(std::move(output.buffer), own * 8, out, framework.stream())));
      }
      EXPECT_EQ(framework.read<float>(out, own * 2),
                std::vector<float>(sums.begin() + static_cast<std::ptrdiff_t>(first * 2),
                                   sums.begin() + static_cast<std::ptrdiff_t>((first + own) * 2)));
    }
    std::vector<std::int64_t> splits;
    std::size_t sent = 0;
    for (std::size_t m = 0; m < size; ++m) {
      splits.push_back(
          static_cast<std::int64_t>(100000 * static_cast<std::size_t>(rank) / size + m));
      sent += static_cast<std::size_t>(splits.back());
    }
    std::vector<std::int32_t> received(size);
    Tensor tensor =
        on_device(framework, in, nullptr, DType::Float32, {static_cast<std::int64_t>(sent), 2});
    tensor.splits = splits;
    tensor.received = received.data();
    Submission swap{.kind = Kind::Alltoall, .name = "a2a"};
    swap.tensors.push_back(std::move(tensor));
    const auto work = run(engine, std::move(swap));
    ASSERT_NE(work, nullptr);
    std::vector<float> expected;
    for (std::size_t m = 0; m < size; ++m) {
      const auto theirs = numbers(rows * 2, static_cast<unsigned>(m));
      const std::size_t each = 100000 * m / size;
      std::size_t begin = 0;
      for (std::size_t to = 0; to < static_cast<std::size_t>(rank); ++to) begin += each + to;
      const std::size_t end = begin + each + static_cast<std::size_t>(rank);
      EXPECT_EQ(static_cast<std::size_t>(received[m]), end - begin);
      expected.insert(expected.end(), theirs.begin() + static_cast<std::ptrdiff_t>(begin * 2),
                      theirs.begin() + static_cast<std::ptrdiff_t>(end * 2));
    }
    Output& output = work->outputs.front();
    std::byte* const out = framework.allocate(expected.size() * 4);
    if (!expected.empty()) {
      ASSERT_TRUE(static_cast<bool>(output.device->deliver(
          std::move(output.buffer), expected.size() * 4, out, framework.stream())));
    }
    EXPECT_EQ(framework.read<float>(out, expected.size()), expected);
  });
}

TEST_P(Staged, CopiesWholeTensorsForWhatReadsThemItself) {
  if ((cluster_.size() & (cluster_.size() - 1)) != 0) GTEST_SKIP() << "Adasum needs 2, 4, 8 …";
  constexpr std::size_t kCount = 700001;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    const auto mine = numbers(kCount, static_cast<unsigned>(rank));
    const Shape shape{static_cast<std::int64_t>(kCount)};
    const auto adasum = on_host(engine, {.name = "h", .op = ReduceOp::Adasum}, mine, shape);
    const auto reduced =
        on_host(engine, {.kind = Kind::Reduce, .name = "h", .root = 0}, mine, shape);
    std::byte* const first = framework.tensor(mine);
    run(engine, {.name = "d",
                 .tensors = {on_device(framework, first, first, DType::Float32, shape)},
                 .op = ReduceOp::Adasum});
    EXPECT_EQ(framework.read<float>(first, kCount), adasum);
    std::byte* const second = framework.tensor(mine);
    run(engine, {.kind = Kind::Reduce,
                 .name = "d",
                 .tensors = {on_device(framework, second, second, DType::Float32, shape)},
                 .root = 0});
    EXPECT_EQ(framework.read<float>(second, kCount), reduced);
  });
}

TEST_P(Staged, TakesPartWithoutADeviceAfterAJoin) {
  if (cluster_.size() == 1) GTEST_SKIP() << "nobody else";
  constexpr std::size_t kCount = EngineDevice::kSlotBytes;  // four chunks
  cluster_.each([&](Rank rank, Engine& engine) {
    if (rank == 0) {
      run(engine, {.kind = Kind::Join});
      return;
    }
    Framework framework;
    std::byte* const tensor = framework.tensor(std::vector<float>(kCount, 1.0F));
    run(engine, {.name = "t",
                 .tensors = {on_device(framework, tensor, tensor, DType::Float32,
                                       {static_cast<std::int64_t>(kCount)})}});
    EXPECT_EQ(framework.read<float>(tensor, kCount),
              std::vector<float>(kCount, static_cast<float>(cluster_.size() - 1)));
    run(engine, {.kind = Kind::Join});
  });
}

TEST_P(Staged, ManyAtOnceInAnyOrder) {
  constexpr int kTensors = 40;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank)));
    std::vector<std::byte*> tensors(kTensors);
    std::vector<Handle> handles;
    for (const int i : order) {
      const auto count = static_cast<std::size_t>(i * i * 37 + 1);
      tensors[static_cast<std::size_t>(i)] =
          framework.tensor(std::vector<float>(count, static_cast<float>(i + rank)));
      auto handle =
          engine.submit({.name = "t" + std::to_string(i),
                         .tensors = {on_device(framework, tensors[static_cast<std::size_t>(i)],
                                               tensors[static_cast<std::size_t>(i)], DType::Float32,
                                               {static_cast<std::int64_t>(count)})}});
      ASSERT_TRUE(static_cast<bool>(handle));
      handles.push_back(*handle);
    }
    for (const Handle handle : handles) EXPECT_FALSE(finish(engine, handle)->error.has_value());
    for (int i = 0; i < kTensors; ++i) {
      const auto count = static_cast<std::size_t>(i * i * 37 + 1);
      const int size = cluster_.size();
      const auto sum = static_cast<float>(i * size + size * (size - 1) / 2);
      EXPECT_EQ(framework.read<float>(tensors[static_cast<std::size_t>(i)], count),
                std::vector<float>(count, sum));
    }
  });
}

TEST_P(Staged, WritesNothingBeforeItsStreamIsThere) {
  if (cluster_.size() == 1) GTEST_SKIP() << "the root writes nothing";
  constexpr std::size_t kBytes = 1000;
  cluster_.each([&](Rank rank, Engine& engine) {
    Framework framework;
    std::byte* const tensor =
        framework.tensor(std::vector<std::uint8_t>(kBytes, static_cast<std::uint8_t>(rank + 1)));
    framework.synchronize();
    if (rank != 0) fakeCudaHold(framework.fake());
    framework.fill(tensor, kBytes, static_cast<unsigned char>(rank + 1));  // before the result
    const auto work = run(engine, {.kind = Kind::Broadcast,
                                   .name = "b",
                                   .tensors = {on_device(framework, tensor, tensor, DType::UInt8,
                                                         {static_cast<std::int64_t>(kBytes)})},
                                   .root = 0});
    ASSERT_NE(work, nullptr);
    if (rank != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for a copy that is wrong
      const auto reached = work->ends.front().point->reached();
      EXPECT_TRUE(reached && !*reached);
      fakeCudaRelease(framework.fake());
    }
    EXPECT_EQ(framework.read<std::uint8_t>(tensor, kBytes), std::vector<std::uint8_t>(kBytes, 1));
  });
}

TEST_P(Staged, KeepsMemoryUntilItIsCopied) {
  if ((cluster_.size() & (cluster_.size() - 1)) != 0) GTEST_SKIP() << "Adasum needs 2, 4, 8 …";
  constexpr std::size_t kCount = 3000;
  fakeCudaDelay(3000);
  cluster_.each([&](Rank, Engine& engine) {
    std::array<Framework, 2> streams;  // what one of them waits for is nothing to the other one
    const Shape shape{static_cast<std::int64_t>(kCount)};
    const std::size_t all = kCount * static_cast<std::size_t>(cluster_.size());
    std::vector<std::byte*> tensors;
    std::vector<std::byte*> gathered;
    for (std::size_t i = 0; i < 12; ++i) {
      tensors.push_back(
          streams[i % 2].tensor(std::vector<float>(kCount, static_cast<float>(i + 1))));
      gathered.push_back(streams[i % 2].allocate(all * 4));
    }
    for (Framework& stream : streams) stream.synchronize();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Framework& framework = streams[i % 2];
      // Equal vectors are their own Adasum.
      run(engine, {.name = "a",
                   .tensors = {on_device(framework, tensors[i], tensors[i], DType::Float32, shape)},
                   .op = ReduceOp::Adasum});
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(streams[i % 2].read<float>(tensors[i], kCount),
                std::vector<float>(kCount, static_cast<float>(i + 1)));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Framework& framework = streams[i % 2];
      const auto work = run(
          engine, {.kind = Kind::Allgather,
                   .name = "g",
                   .tensors = {on_device(framework, tensors[i], nullptr, DType::Float32, shape)}});
      ASSERT_NE(work, nullptr);
      Output& output = work->outputs.front();
      ASSERT_TRUE(static_cast<bool>(output.device->deliver(std::move(output.buffer), all * 4,
                                                           gathered[i], framework.stream())));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(streams[i % 2].read<float>(gathered[i], all),
                std::vector<float>(all, static_cast<float>(i + 1)));
    }
  });
  fakeCudaDelay(200);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Staged,
                         ::testing::Values(Groups{{0}}, Groups{{0, 1}}, Groups{{0}, {1}},
                                           Groups{{0, 1}, {2}}, Groups{{0, 1}, {2, 3}}),
                         world_name);

}  // namespace
}  // namespace farandole::testing

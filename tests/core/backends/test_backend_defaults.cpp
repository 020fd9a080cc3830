// The collectives that every backend has without writing them, over tiny socket buffers.
#include <gtest/gtest.h>

#include <random>

#include "association_reference.h"
#include "backends/algorithms/direct.h"
#include "reduce_batch.h"
#include "tcp_world.h"

namespace farandole {
namespace {

using reference::Bytes;
using testing::Batch;
using testing::drive;
using testing::succeeded;
using testing::TcpWorld;
using Groups = std::vector<std::vector<int>>;

constexpr int kTiny = 1;  // the kernel raises it to its minimum, a few KiB

const std::vector<Groups> kWorlds{
    {{0}},
    {{0}, {1}},
    {{0, 1}},
    {{0, 1}, {2}},
    {{0}, {1}, {2}},
    {{0, 2}, {1, 3}},
    {{0}, {1}, {2}, {3}, {4}},
    {{0, 1, 2}, {3, 4}, {5, 6, 7}},
};

Bytes reduce_batch(TcpBackend& backend, const Bytes& input, const Batch& batch,
                   const Reduction& reduction, const DirectPlan* plan) {
  return testing::reduce_batch(
      backend, input, batch, reduction, [&](std::span<const Piece> pieces, Staging& staging) {
        return plan == nullptr ? backend.start(Allreduce{pieces, reduction})
                               : direct_allreduce(backend, staging, pieces, reduction, *plan);
      });
}

class DirectAllreduceBits : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DirectAllreduceBits, ::testing::ValuesIn(kWorlds));

TEST_P(DirectAllreduceBits, AreThoseOfTheAssociationWhateverTheCut) {
  const std::vector<Batch> batches{
      {{1}, false},
      {{0}, false},
      {{}, false},
      {{257}, true},
      {{1, 0, 7, 300, 2, 64, 3}, true},
      {{5, 5, 700, 0, 1}, false},
  };
  const std::vector<Reduction> reductions{
      {DType::Float32, ReduceOp::Sum, 1.0, 1.0},      {DType::Float16, ReduceOp::Sum, 0.3, 1.0 / 3},
      {DType::BFloat16, ReduceOp::Product, 1.0, 0.5}, {DType::Float64, ReduceOp::Min, 2.0, 1.0},
      {DType::Int32, ReduceOp::Sum, 0.5, 0.7},        {DType::Int8, ReduceOp::Max, 1.0, 1.0},
      {DType::UInt16, ReduceOp::Product, 1.0, 1.0},   {DType::Bool, ReduceOp::Average, 0.5, 0.5},
      {DType::Bool, ReduceOp::Sum, 1.0, 1.0},         {DType::BFloat16, ReduceOp::Sum, 1.0, 0.05},
  };
  const Groups& groups = GetParam();
  TcpWorld world({.groups = groups, .buffer_bytes = kTiny});
  const auto size = static_cast<std::size_t>(world.size());
  std::mt19937 random(static_cast<unsigned>(size));
  for (const Reduction& reduction : reductions) {
    for (const Batch& batch : batches) {
      std::vector<Bytes> inputs;
      for (std::size_t i = 0; i < size; ++i) {
        inputs.push_back(reference::mixed(reduction.dtype, batch.count(), random));
      }
      const Bytes expected = reference::associate(groups, inputs, reduction);
      const std::vector<DirectPlan> plans{{1000000, true}, {1000000, false},
                                          {64, true},      {64, false},
                                          {37, false},     {1 + random() % 9, false}};
      world.run([&](int self, TcpBackend& backend) {
        const Bytes& input = inputs[static_cast<std::size_t>(self)];
        for (const DirectPlan& plan : plans) {
          EXPECT_EQ(reduce_batch(backend, input, batch, reduction, &plan), expected)
              << name_of(reduction.dtype) << " " << name_of(reduction.op) << ", " << size
              << " members, window " << plan.window << (plan.everyone ? " everyone" : " sliced")
              << ", member " << self << ", " << batch.counts.size() << " pieces";
        }
        EXPECT_EQ(reduce_batch(backend, input, batch, reduction, nullptr), expected);
      });
      if (HasFailure()) return;
    }
  }
}

TEST(DirectAllreduce, CutsLargeBatchesByItself) {
  for (const Groups& groups : {Groups{{0}, {1}}, Groups{{0, 1}, {2}}}) {
    for (const testing::Wire wire : {testing::Wire::UnixPair, testing::Wire::Loopback}) {
      TcpWorld world({.groups = groups, .wire = wire, .buffer_bytes = 65536});
      const Batch batch{{300000, 17, 500001}, wire == testing::Wire::UnixPair};
      const Reduction reduction{DType::Float32, ReduceOp::Sum, 1.0, 0.25};
      std::mt19937 random(5);
      std::vector<Bytes> inputs;
      for (int i = 0; i < world.size(); ++i) {
        inputs.push_back(reference::mixed(reduction.dtype, batch.count(), random));
      }
      const Bytes expected = reference::associate(groups, inputs, reduction);
      world.run([&](int self, TcpBackend& backend) {
        const Bytes& input = inputs[static_cast<std::size_t>(self)];
        const Bytes result = reduce_batch(backend, input, batch, reduction, nullptr);
        EXPECT_TRUE(result == expected) << "member " << self;
      });
    }
  }
}

TEST(DirectAllreduce, InPlaceTheResultWaitsUntilTheInputIsSent) {
  TcpWorld world({.groups = testing::each_alone(2), .buffer_bytes = kTiny});
  TcpBackend backend(world.members(0), world.mesh(0));
  TcpBackend peer(world.members(1), world.mesh(1));
  const std::size_t count = 100000;  // one window; many times the socket buffers
  std::vector<float> values(count, 1.0f);
  const std::vector<float> contribution(count, 2.0f);
  std::vector<float> seen(count);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  const Piece piece{bytes, bytes, count};
  Staging staging;
  auto operation = direct_allreduce(backend, staging, {&piece, 1}, {}, {count, true});
  auto sending = peer.send(0, std::as_bytes(std::span(contribution)));
  auto receipt = peer.recv(0, std::as_writable_bytes(std::span(seen)));
  const auto step = [](Operation& any) {
    auto result = any.step();
    EXPECT_TRUE(result);
    return result ? *result : Step::Done;
  };
  const TimePoint deadline = Clock::now() + testing::kPatience;
  // The peer gives all it has before it takes a byte.
  for (bool sent = false; step(*operation) != Step::Blocked || !sent;) {
    ASSERT_LT(Clock::now(), deadline);
    sent = step(*sending) == Step::Done;
  }
  while (step(*receipt) != Step::Done) {
    ASSERT_LT(Clock::now(), deadline);
    (void)step(*operation);
  }
  EXPECT_EQ(step(*operation), Step::Done);
  EXPECT_EQ(seen, std::vector<float>(count, 1.0f));
  EXPECT_EQ(values, std::vector<float>(count, 3.0f));
}

TEST(DirectAllreduce, StagingStaysBoundedForAnySizeAndWorld) {
  for (const int members : {1, 2, 3, 8}) {
    TcpWorld world({.groups = testing::each_alone(members)});
    TcpBackend backend(world.members(0), world.mesh(0));
    for (const std::size_t count : {std::size_t{1} << 12, std::size_t{1} << 33}) {
      Staging staging;
      const Piece piece{nullptr, nullptr, count};  // never touched: the operation is not stepped
      (void)direct_allreduce(backend, staging, {&piece, 1}, {},
                             plan_direct(count, sizeof(float), members));
      EXPECT_LE(staging.bytes(), std::size_t{8} << 20) << members << " members, " << count;
    }
  }
}

TEST(DirectAllreduce, RefusesWhatTheKernelsDoNotKnow) {
  TcpWorld world({.groups = {{0}, {1}}});
  TcpBackend backend(world.members(0), world.mesh(0));
  for (const ReduceOp op : {ReduceOp::Adasum, ReduceOp::Average}) {
    auto step = backend.start(Allreduce{{}, {DType::Float32, op, 1.0, 1.0}})->step();
    ASSERT_FALSE(step);
    EXPECT_EQ(step.error().code, Code::Unsupported);
  }
}

TEST(DirectAllreduce, NamesWhomItWaitsFor) {
  TcpWorld world({.groups = testing::each_alone(3)});
  TcpBackend backend(world.members(1), world.mesh(1));
  float value = 1;
  const Piece piece{reinterpret_cast<std::byte*>(&value), reinterpret_cast<std::byte*>(&value), 1};
  Staging staging;
  auto operation = direct_allreduce(backend, staging, {&piece, 1}, {}, {1, true});
  for (int i = 0; i < 10; ++i) {
    auto step = operation->step();
    ASSERT_TRUE(step);
    if (*step == Step::Blocked) break;
  }
  EXPECT_EQ(operation->waiting_for(), (std::vector<Rank>{0, 20}));
}

Bytes numbered(std::size_t bytes, int seed) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    result[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(seed) * 31);
  }
  return result;
}

/// Cuts memory at arbitrary places.
template <typename Byte>
std::vector<std::span<Byte>> cut(std::span<Byte> whole, std::mt19937& random) {
  std::vector<std::span<Byte>> parts;
  while (!whole.empty()) {
    const std::size_t now = random() % (whole.size() + 1);
    parts.push_back(whole.first(now));
    whole = whole.subspan(now);
  }
  return parts;
}

TEST(DirectAllgather, ContributionsDifferInLengthAndEveryMemberCutsThemDifferently) {
  for (const int size : {1, 2, 3, 5, 8}) {
    TcpWorld world({.groups = testing::each_alone(size), .buffer_bytes = kTiny});
    for (const std::size_t unit :
         {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{300000}}) {
      std::vector<Bytes> expected;
      for (int m = 0; m < size; ++m) {
        // Member 1 has nothing; the others more and more.
        expected.push_back(numbered(m == 1 ? 0 : unit * static_cast<std::size_t>(m + 1), m));
      }
      world.run([&](int self, TcpBackend& backend) {
        std::mt19937 random(static_cast<unsigned>(self));
        const Bytes& own = expected[static_cast<std::size_t>(self)];
        std::vector<Bytes> got;
        GatherPlan plan;
        plan.in = cut(std::span<const std::byte>(own), random);
        for (const Bytes& bytes : expected) got.emplace_back(bytes.size(), std::byte{0xee});
        for (Bytes& bytes : got) plan.out.push_back(cut(std::span<std::byte>(bytes), random));
        auto operation = backend.start(std::move(plan));
        EXPECT_TRUE(succeeded(drive(*operation, backend)));
        EXPECT_TRUE(got == expected) << size << " members, unit " << unit << ", member " << self;
      });
    }
  }
}

TEST(DirectAllgather, RefusesAPlanThatDoesNotFit) {
  TcpWorld world({.groups = {{0}, {1}}});
  TcpBackend backend(world.members(0), world.mesh(0));
  std::byte data[2];
  GatherPlan plan;
  plan.in = {std::span<const std::byte>(data, 2)};
  plan.out = {{std::span(data, 1)}, {}};
  auto step = backend.start(plan)->step();
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, Code::InvalidArgument);
}

TEST(TreeBroadcast, ReachesEverybodyFromEveryRoot) {
  for (const int size : {1, 2, 3, 6, 8}) {
    TcpWorld world({.groups = testing::each_alone(size), .buffer_bytes = kTiny});
    for (int root = 0; root < size; ++root) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100000}}) {
        world.run([&](int self, TcpBackend& backend) {
          const Bytes source = numbered(bytes, root);
          Bytes data = self == root ? source : Bytes(bytes, std::byte{0xee});
          auto operation = backend.start(Broadcast{data, data, root});  // in place
          EXPECT_TRUE(succeeded(drive(*operation, backend)));
          EXPECT_TRUE(data == source) << "root " << root << ", member " << self;
        });
      }
    }
  }
}

TEST(TreeBroadcast, PassesManyChunksOnAndFillsTheOutputOfTheRoot) {
  TcpWorld world({.groups = testing::each_alone(4), .wire = testing::Wire::Loopback});
  const Bytes source = numbered((std::size_t{5} << 20) + 3, 1);
  world.run([&](int self, TcpBackend& backend) {
    Bytes data(source.size(), std::byte{0xee});
    auto operation = backend.start(Broadcast{
        self == 2 ? std::span<const std::byte>(source) : std::span<const std::byte>{}, data, 2});
    EXPECT_TRUE(succeeded(drive(*operation, backend)));
    EXPECT_TRUE(data == source) << "member " << self;
  });
}

TEST(TreeBroadcast, RefusesARootOutsideTheSet) {
  TcpWorld world({.groups = {{0}, {1}}});
  TcpBackend backend(world.members(0), world.mesh(0));
  for (const int root : {-1, 2}) {
    auto step = backend.start(Broadcast{{}, {}, root})->step();
    ASSERT_FALSE(step);
    EXPECT_EQ(step.error().code, Code::InvalidArgument);
  }
}

TEST(Barrier, NobodyLeavesBeforeAllHaveArrived) {
  for (const int size : {1, 2, 3, 5, 8}) {
    TcpWorld world({.groups = testing::each_alone(size)});
    std::atomic<int> arrived{0};
    world.run([&](int, TcpBackend& backend) {
      for (int round = 1; round <= 20; ++round) {
        arrived.fetch_add(1);
        auto operation = backend.start(Barrier{});
        EXPECT_TRUE(succeeded(drive(*operation, backend)));
        EXPECT_GE(arrived.load(), round * size);
      }
    });
  }
}

TEST(Defaults, OperationsOfAllKindsFollowEachOther) {
  TcpWorld world({.groups = {{0, 1}, {2}}, .buffer_bytes = kTiny});
  world.run([&](int self, TcpBackend& backend) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int32_t> sums(static_cast<std::size_t>(1 + round * 301), self + round);
      const Piece piece{reinterpret_cast<std::byte*>(sums.data()),
                        reinterpret_cast<std::byte*>(sums.data()), sums.size()};
      auto allreduce =
          backend.start(Allreduce{{&piece, 1}, {DType::Int32, ReduceOp::Sum, 1.0, 1.0}});
      ASSERT_TRUE(succeeded(drive(*allreduce, backend)));
      ASSERT_EQ(sums, std::vector<std::int32_t>(sums.size(), 3 + 3 * round));

      Bytes all(3);
      const std::byte mine{static_cast<unsigned char>(self + 1)};
      GatherPlan plan;
      plan.in = {{&mine, 1}};
      for (std::byte& place : all) plan.out.push_back({std::span(&place, 1)});
      auto allgather = backend.start(std::move(plan));
      ASSERT_TRUE(succeeded(drive(*allgather, backend)));
      ASSERT_EQ(all, (Bytes{std::byte{1}, std::byte{2}, std::byte{3}}));

      auto barrier = backend.start(Barrier{});
      ASSERT_TRUE(succeeded(drive(*barrier, backend)));

      auto broadcast = backend.start(Broadcast{all, all, round % 3});
      ASSERT_TRUE(succeeded(drive(*broadcast, backend)));
    }
  });
}

}  // namespace
}  // namespace farandole

// Allreduce from pair to pair: whom a member meets, and the bits for any number of members.
#include "backends/algorithms/paired_allreduce.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "association_reference.h"
#include "reduce_batch.h"
#include "tcp_world.h"

namespace farandole {
namespace {

using reference::Bytes;
using testing::Batch;
using testing::each_alone;
using testing::TcpWorld;

constexpr int kTiny = 1;  // the kernel raises it to its minimum, a few KiB

TEST(Pairing, BothEndsOfAMeetingHaveItAtTheSamePlace) {
  for (const Pairing pairing : {Pairing::Doubling, Pairing::Halving}) {
    for (int members = 2; members <= 40; ++members) {
      for (std::size_t window = 0; window < 2; ++window) {
        for (const std::size_t count : {0u, 1u, 7u, 64u, 1000u}) {
          std::vector<std::vector<Meeting>> plans(static_cast<std::size_t>(members));
          for (int self = 0; self < members; ++self) {
            plan_meetings(plans[static_cast<std::size_t>(self)], self, members, pairing, window,
                          count, 8);
          }
          for (int self = 0; self < members; ++self) {
            const auto& mine = plans[static_cast<std::size_t>(self)];
            ASSERT_EQ(mine.size(), meetings(members, pairing));
            for (std::size_t t = 0; t < mine.size(); ++t) {
              if (mine[t].peer < 0) continue;
              ASSERT_LT(mine[t].peer, members);
              const Meeting& theirs = plans[static_cast<std::size_t>(mine[t].peer)][t];
              ASSERT_EQ(theirs.peer, self) << members << " members, meeting " << t;
              ASSERT_EQ(theirs.send.begin, mine[t].receive.begin);
              ASSERT_EQ(theirs.send.count, mine[t].receive.count);
              ASSERT_LE(mine[t].send.begin + mine[t].send.count, count);
            }
          }
        }
      }
    }
  }
}

TEST(Pairing, NobodyCarriesMoreThanTwiceTheBytes) {
  for (int members = 2; members <= 40; ++members) {
    for (int self = 0; self < members; ++self) {
      std::size_t sent = 0;
      std::size_t received = 0;
      for (std::size_t window = 0; window < 2; ++window) {
        std::vector<Meeting> plan;
        plan_meetings(plan, self, members, Pairing::Halving, window, 1 << 20, 1);
        for (const Meeting& meeting : plan) {
          sent += meeting.send.count;
          received += meeting.receive.count;
        }
      }
      EXPECT_LE(sent, std::size_t{4} << 20) << members << " members";
      EXPECT_LE(received, std::size_t{4} << 20) << members << " members";
    }
  }
}

class PairedAllreduceBits : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Members, PairedAllreduceBits,
                         ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9, 12),
                         [](const auto& members) { return std::to_string(members.param); });

TEST_P(PairedAllreduceBits, AreThoseOfTheAssociationWhateverTheCut) {
  const std::vector<Batch> batches{
      {{1}, false},
      {{}, false},
      {{513}, true},
      {{1, 0, 7, 900, 2, 64, 3}, true},
      {{5, 5, 700, 0, 1}, false},
  };
  const std::vector<Reduction> reductions{
      {DType::Float32, ReduceOp::Sum, 1.0, 1.0},      {DType::Float16, ReduceOp::Sum, 0.3, 1.0 / 3},
      {DType::BFloat16, ReduceOp::Product, 1.0, 0.5}, {DType::Float64, ReduceOp::Min, 2.0, 1.0},
      {DType::Int32, ReduceOp::Sum, 0.5, 0.7},        {DType::Int8, ReduceOp::Max, 1.0, 1.0},
      {DType::UInt16, ReduceOp::Product, 1.0, 1.0},   {DType::Bool, ReduceOp::Average, 0.5, 0.5},
      {DType::Bool, ReduceOp::Sum, 1.0, 1.0},         {DType::BFloat16, ReduceOp::Sum, 1.0, 0.05},
  };
  const auto groups = each_alone(GetParam());
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
      std::vector<PairedPlan> plans;
      for (const Pairing pairing : {Pairing::Doubling, Pairing::Halving}) {
        plans.push_back({pairing, 1000000, 4});
        plans.push_back({pairing, 37, 3});
        plans.push_back({pairing, 256 + random() % 9, 1});
        plans.push_back({pairing, 200 + random() % 100, 1 + random() % 9});
      }
      world.run([&](int self, TcpBackend& backend) {
        const Bytes& input = inputs[static_cast<std::size_t>(self)];
        for (const PairedPlan& plan : plans) {
          const auto start = [&](std::span<const Piece> pieces, Staging& staging) {
            return paired_allreduce(backend, staging, pieces, reduction, plan);
          };
          EXPECT_EQ(testing::reduce_batch(backend, input, batch, reduction, start), expected)
              << name_of(reduction.dtype) << " " << name_of(reduction.op) << ", " << size
              << " members, window " << plan.window << " by " << plan.under_way
              << (plan.pairing == Pairing::Halving ? ", halving" : ", doubling") << ", member "
              << self << ", " << batch.counts.size() << " pieces";
        }
        const auto by_itself = [&](std::span<const Piece> pieces, Staging&) {
          return backend.start(Allreduce{pieces, reduction});
        };
        EXPECT_EQ(testing::reduce_batch(backend, input, batch, reduction, by_itself), expected);
      });
      if (HasFailure()) return;
    }
  }
}

TEST(PairedAllreduce, CutsLargeBatchesByItself) {
  const std::vector<int> sizes = testing::kSanitized ? std::vector{3} : std::vector{2, 3, 4, 5};
  for (const int members : sizes) {
    for (const testing::Wire wire : {testing::Wire::UnixPair, testing::Wire::Loopback}) {
      const auto groups = each_alone(members);
      TcpWorld world({.groups = groups,
                      .wire = wire,
                      .buffer_bytes = 65536,
                      .streams = wire == testing::Wire::Loopback ? 3 : 1});
      const Batch batch{{300000, 17, 500001}, wire == testing::Wire::UnixPair};
      const Reduction reduction{DType::Float32, ReduceOp::Sum, 1.0, 0.25};
      std::mt19937 random(5);
      std::vector<Bytes> inputs;
      for (int i = 0; i < world.size(); ++i) {
        inputs.push_back(reference::mixed(reduction.dtype, batch.count(), random));
      }
      const Bytes expected = reference::associate(groups, inputs, reduction);
      world.run([&](int self, TcpBackend& backend) {
        const auto start = [&](std::span<const Piece> pieces, Staging&) {
          return backend.start(Allreduce{pieces, reduction});
        };
        const Bytes& input = inputs[static_cast<std::size_t>(self)];
        EXPECT_TRUE(testing::reduce_batch(backend, input, batch, reduction, start) == expected)
            << "member " << self << " of " << members;
      });
    }
  }
}

}  // namespace
}  // namespace farandole

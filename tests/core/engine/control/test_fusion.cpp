#include "engine/control/fusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace farandole {
namespace {

using Batches = std::vector<std::vector<std::size_t>>;

Signature tensor(Kind kind = Kind::Allreduce, DType dtype = DType::Float32) {
  Signature signature;
  signature.kind = kind;
  signature.dtype = dtype;
  return signature;
}

TEST(Fusion, equal_operations_within_the_threshold_are_one_batch) {
  const Signature s = tensor();
  const std::vector<Ready> ready{{&s, 40}, {&s, 40}, {&s, 40}};
  EXPECT_EQ(plan(ready, {.threshold_bytes = 120}), (Batches{{0, 1, 2}}));
  EXPECT_EQ(plan(ready, {.threshold_bytes = 119}), (Batches{{0, 1}, {2}}));
}

TEST(Fusion, threshold_zero_runs_one_by_one) {
  const Signature s = tensor();
  const std::vector<Ready> ready{{&s, 4}, {&s, 0}, {&s, 4}};
  EXPECT_EQ(plan(ready, {.threshold_bytes = 0}), (Batches{{0}, {1}, {2}}));
}

TEST(Fusion, larger_than_the_threshold_goes_alone) {
  const Signature s = tensor();
  const std::vector<Ready> ready{{&s, 500}, {&s, 40}, {&s, 40}};
  EXPECT_EQ(plan(ready, {.threshold_bytes = 100}), (Batches{{0}, {1, 2}}));
}

TEST(Fusion, what_does_not_match_is_passed_over_within_the_threshold) {
  const Signature f = tensor();
  const Signature d = tensor(Kind::Allreduce, DType::Float64);
  const std::vector<Ready> ready{{&f, 10}, {&d, 10}, {&f, 10}, {&d, 10}};
  EXPECT_EQ(plan(ready, {.threshold_bytes = 100}), (Batches{{0, 2}, {1, 3}}));
  // 30 bytes passed over and 10 in the batch exceed 35: the look-ahead ends.
  const std::vector<Ready> far{{&f, 10}, {&d, 30}, {&f, 10}};
  EXPECT_EQ(plan(far, {.threshold_bytes = 35}), (Batches{{0}, {1}, {2}}));
}

TEST(Fusion, only_fusable_kinds_are_fused) {
  const Signature b = tensor(Kind::Broadcast);
  const std::vector<Ready> ready{{&b, 4}, {&b, 4}};
  EXPECT_EQ(plan(ready, {}), (Batches{{0}, {1}}));
}

TEST(Fusion, every_property_of_a_batch_must_agree) {
  const Signature one = tensor();
  std::vector<Signature> others(7, one);
  others[0].dtype = DType::Float16;
  others[1].op = ReduceOp::Max;
  others[2].device = Device::Cuda;
  others[3].prescale = 2.0;
  others[4].postscale = 2.0;
  others[5].kind = Kind::Allgather;
  others[6].root = 1;
  for (const Signature& other : others) {
    const std::vector<Ready> ready{{&one, 4}, {&other, 4}};
    EXPECT_EQ(plan(ready, {}), (Batches{{0}, {1}}));
  }
  const std::vector<Ready> sets{{&one, 4, 0}, {&one, 4, 1}};
  EXPECT_EQ(plan(sets, {}), (Batches{{0}, {1}}));
}

TEST(Fusion, disabled_group_fusion_fuses_a_group_only_with_itself) {
  const Signature s = tensor();
  const std::vector<Ready> ready{{&s, 4, 0, 1}, {&s, 4, 0, 0}, {&s, 4, 0, 2},
                                 {&s, 4, 0, 1}, {&s, 4, 0, 0}, {&s, 4, 0, 2}};
  EXPECT_EQ(plan(ready, {.disable_group_fusion = true}), (Batches{{0, 3}, {1}, {2, 5}, {4}}));
  EXPECT_EQ(plan(ready, {}), (Batches{{0, 1, 2, 3, 4, 5}}));
}

TEST(Fusion, every_operation_is_in_exactly_one_batch_in_order) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Signature> kinds{tensor(), tensor(Kind::Allreduce, DType::Float64),
                                 tensor(Kind::Broadcast), tensor(Kind::Allgather)};
    std::vector<Ready> ready;
    for (std::size_t i = 0; i < 40; ++i) {
      ready.push_back({&kinds[random() % 4], random() % 64, 0, random() % 3});
    }
    const FusionOptions options{.threshold_bytes = random() % 200,
                                .disable_group_fusion = random() % 2 == 0};
    std::vector<int> seen(ready.size(), 0);
    std::size_t head = 0;
    for (const auto& batch : plan(ready, options)) {
      EXPECT_TRUE(std::ranges::is_sorted(batch));
      EXPECT_GE(batch.front(), head) << "batches are not in the order of their first operation";
      head = batch.front();
      std::size_t bytes = 0;
      for (std::size_t i : batch) {
        ++seen[i];
        bytes += ready[i].bytes;
      }
      if (batch.size() > 1) {
        EXPECT_LE(bytes, options.threshold_bytes);
      }
    }
    EXPECT_EQ(seen, std::vector<int>(ready.size(), 1));
  }
}

}  // namespace
}  // namespace farandole

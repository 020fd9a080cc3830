// The one order of combination, against a tree written out by hand and a plain recursion.
#include "kernels/association.h"

#include <gtest/gtest.h>

#include <array>

#include "association_reference.h"

namespace farandole {
namespace {

using reference::Bytes;
using reference::Groups;

constexpr std::array kTypes{DType::Float16, DType::BFloat16, DType::Float32, DType::Float64,
                            DType::Int8,    DType::Int64,    DType::Bool};

/// The value of every host, then the tree as the architecture words it.
Bytes expected_tree(const Groups& groups, const std::vector<Bytes>& sources, DType dtype,
                    ReduceOp op, const reference::Shares& shares) {
  std::vector<Bytes> hosts;
  for (const auto& group : groups) {
    std::vector<Bytes> members;
    for (const int member : group) members.push_back(sources[static_cast<std::size_t>(member)]);
    hosts.push_back(reference::reduce(members, dtype, op, shares.host));
  }
  std::size_t power = 1;
  while (power * 2 <= hosts.size()) power *= 2;
  std::size_t round = 0;
  for (std::size_t host = 0; host < power && hosts.size() > power; ++host) {
    const std::size_t surplus = host + power;
    hosts[host] =
        surplus < hosts.size()
            ? reference::reduce({hosts[host], hosts[surplus]}, dtype, op, shares.rounds[round])
            : reference::scale(hosts[host], dtype, shares.rounds[round]);
  }
  if (hosts.size() > power) ++round;
  // As in recursive doubling: all hosts at once, each with the one at that distance.
  for (std::size_t distance = 1; distance < power; distance *= 2, ++round) {
    std::vector<Bytes> next(power);
    for (std::size_t host = 0; host < power; ++host) {
      next[host] =
          reference::reduce({hosts[host], hosts[host ^ distance]}, dtype, op, shares.rounds[round]);
    }
    std::copy(next.begin(), next.end(), hosts.begin());
  }
  for (std::size_t host = 1; host < power; ++host) EXPECT_EQ(hosts[host], hosts[0]);
  return hosts[0];
}

Bytes expected_tree(const Groups& groups, const std::vector<Bytes>& sources, DType dtype,
                    ReduceOp op, double postscale) {
  return expected_tree(groups, sources, dtype, op,
                       reference::shares_of(groups, dtype, op, postscale));
}

int members_of(const Groups& groups) {
  int total = 0;
  for (const auto& group : groups) total += static_cast<int>(group.size());
  return total;
}

/// `hosts` hosts of `local` members, dealt out like cards or in blocks.
Groups regular(int hosts, int local, bool dealt) {
  Groups groups(static_cast<std::size_t>(hosts));
  for (int member = 0; member < hosts * local; ++member) {
    groups[static_cast<std::size_t>(dealt ? member % hosts : member / local)].push_back(member);
  }
  return groups;
}

std::vector<Groups> worlds() {
  std::vector<Groups> all{{{0, 3}, {1}, {2, 4, 5}}, {{0}, {1, 2, 3, 4}, {5}, {6, 7}, {8}}};
  for (int hosts = 1; hosts <= 9; ++hosts) {
    all.push_back(regular(hosts, 1, false));
    all.push_back(regular(hosts, 3, hosts % 2 == 0));
  }
  return all;
}

class AssociationTest : public testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    if (!supported(GetParam())) {
      GTEST_SKIP() << "this processor or build lacks " << name_of(GetParam());
    }
  }
  [[nodiscard]] std::vector<Bytes> inputs(const Groups& groups, DType dtype, std::size_t count) {
    std::vector<Bytes> result;
    for (int member = 0; member < members_of(groups); ++member) {
      result.push_back(reference::mixed(dtype, count, random_));
    }
    return result;
  }
  std::mt19937 random_{7};  // NOLINT: the same numbers in every run
};

std::vector<const std::byte*> pointers(const std::vector<Bytes>& contents, std::size_t offset = 0) {
  std::vector<const std::byte*> result;
  for (const Bytes& content : contents) result.push_back(content.data() + offset);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Levels, AssociationTest,
                         testing::Values(Level::Baseline, Level::Avx2, Level::Avx512),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_P(AssociationTest, EvaluateMatchesThePlainTree) {
  constexpr std::size_t kCount = 2111;  // more than one block of every type but the bytes
  for (const Groups& groups : worlds()) {
    const Association association(groups);
    for (const DType dtype : kTypes) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max}) {
        const auto contents = inputs(groups, dtype, kCount);
        // One is soon used up by shares, the other is enough for every step.
        const double factor = members_of(groups) % 2 == 0 ? 1.0 / 3 : -1.0 / 100;
        const Bytes expected = expected_tree(groups, contents, dtype, op, factor);
        Bytes out(expected.size());
        Bytes also(expected.size());
        association.evaluate(out.data(), pointers(contents), kCount, dtype, op, factor, also.data(),
                             GetParam());
        ASSERT_EQ(out, expected) << name_of(dtype) << " over " << groups.size() << " hosts";
        ASSERT_EQ(also, expected);
      }
    }
  }
}

TEST_P(AssociationTest, BitsDoNotDependOnHowTheRangeIsCut) {
  constexpr std::size_t kCount = 5003;
  for (const Groups& groups : {regular(1, 5, false), regular(4, 2, true), regular(6, 1, false)}) {
    const Association association(groups);
    for (const DType dtype : kTypes) {
      const auto contents = inputs(groups, dtype, kCount);
      const Bytes expected = expected_tree(groups, contents, dtype, ReduceOp::Sum, 1.0 / 8);
      const std::size_t width = size_of(dtype);
      for (const std::size_t step : {std::size_t{37}, std::size_t{1000}, std::size_t{4096}}) {
        Bytes out(expected.size());
        for (std::size_t at = 0; at < kCount; at += step) {
          association.evaluate(out.data() + at * width, pointers(contents, at * width),
                               std::min(step, kCount - at), dtype, ReduceOp::Sum, 1.0 / 8, nullptr,
                               GetParam());
        }
        ASSERT_EQ(out, expected) << name_of(dtype) << " by " << step;
      }
    }
  }
}

TEST_P(AssociationTest, EvaluateMayWriteOverAnySource) {
  constexpr std::size_t kCount = 3000;
  for (const Groups& groups : {regular(1, 3, false), regular(3, 1, false), regular(5, 2, false)}) {
    const Association association(groups);
    for (const DType dtype : {DType::Float16, DType::Float32}) {
      const auto contents = inputs(groups, dtype, kCount);
      const Bytes expected = expected_tree(groups, contents, dtype, ReduceOp::Sum, 1.0);
      for (std::size_t target = 0; target < contents.size(); ++target) {
        auto memory = contents;
        association.evaluate(memory[target].data(), pointers(memory), kCount, dtype, ReduceOp::Sum,
                             1.0, nullptr, GetParam());
        ASSERT_EQ(memory[target], expected) << "over source " << target;
      }
    }
  }
}

/// What a network algorithm does: reduce inside each host, then follow steps() one by one.
TEST_P(AssociationTest, StepsComputeTheSameAsEvaluate) {
  constexpr std::size_t kCount = 997;
  for (const Groups& groups : worlds()) {
    const Association association(groups);
    for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32}) {
      const auto contents = inputs(groups, dtype, kCount);
      std::vector<Bytes> hosts;
      for (const auto& group : groups) {
        std::vector<const std::byte*> members;
        for (const int member : group) {
          members.push_back(contents[static_cast<std::size_t>(member)].data());
        }
        Bytes value(contents[0].size());
        reduce(value.data(), members, kCount, dtype, ReduceOp::Sum, 1.0, nullptr, GetParam());
        hosts.push_back(std::move(value));
      }
      for (const Association::Step step : association.steps()) {
        ASSERT_LT(step.into, step.from);
        Bytes& into = hosts[static_cast<std::size_t>(step.into)];
        const std::array<const std::byte*, 2> pair{
            hosts[static_cast<std::size_t>(step.from)].data(), into.data()};
        reduce(into.data(), pair, kCount, dtype, ReduceOp::Sum, 1.0, nullptr, GetParam());
      }
      Bytes out(contents[0].size());
      association.evaluate(out.data(), pointers(contents), kCount, dtype, ReduceOp::Sum, 1.0,
                           nullptr, GetParam());
      // A single member has nothing to be combined with, so even its NaNs are left alone.
      ASSERT_EQ(out, hosts[0]) << name_of(dtype) << " over " << groups.size() << " hosts";
    }
  }
}

template <typename T>
Bytes filled(std::size_t count, float value) {
  return reference::bytes(std::vector<T>(count, T::from(value)));
}

/// The average of equal values by that association.
template <typename T>
float average_of(const Groups& groups, float value, DType dtype, Level level) {
  constexpr std::size_t kCount = 131;
  const int members = members_of(groups);
  const std::vector<Bytes> contents(static_cast<std::size_t>(members), filled<T>(kCount, value));
  Bytes out(contents[0].size());
  Association(groups).evaluate(out.data(), pointers(contents), kCount, dtype, ReduceOp::Sum,
                               1.0 / members, nullptr, level);
  const T got = reference::values<T>(out)[0];
  EXPECT_EQ(out, reference::bytes(std::vector<T>(kCount, got)));
  return static_cast<float>(reference::widened(got));
}

TEST_P(AssociationTest, AveragesOfHalvesNeitherOverflowNorVanish) {
  using reference::Brain;
  using reference::Half;
  for (const Groups& groups : worlds()) {
    const auto hosts = groups.size();
    for (const float largest : {65504.0f, -65504.0f}) {  // digits are 32 apart there
      ASSERT_NEAR(average_of<Half>(groups, largest, DType::Float16, GetParam()), largest, 64)
          << hosts;
    }
    // 16 of the smallest steps; one is lost at most.
    ASSERT_NEAR(average_of<Half>(groups, 0x1p-20f, DType::Float16, GetParam()), 0x1p-20f, 0x1p-24f)
        << hosts;
    // The ranks of a host can add this up in float32, all of them could not.
    ASSERT_NEAR(average_of<Brain>(groups, 0x1p125f, DType::BFloat16, GetParam()), 0x1p125f,
                0x1p117f)
        << hosts;
  }
}

/// Powers of two change no digit of what has room for all digits.
TEST_P(AssociationTest, SharesDoNotShowInOrdinaryValues) {
  constexpr std::size_t kCount = 997;
  std::uniform_real_distribution<float> ordinary(-2.0f, 2.0f);
  for (const Groups& groups : worlds()) {
    const double factor = 1.0 / members_of(groups);
    std::vector<Bytes> contents;
    for (int member = 0; member < members_of(groups); ++member) {
      std::vector<reference::Brain> values(kCount);
      for (auto& value : values) value = reference::Brain::from(ordinary(random_));
      contents.push_back(reference::bytes(values));
    }
    const Bytes expected = expected_tree(groups, contents, DType::BFloat16, ReduceOp::Sum,
                                         reference::undivided(groups, factor));
    Bytes out(expected.size());
    Association(groups).evaluate(out.data(), pointers(contents), kCount, DType::BFloat16,
                                 ReduceOp::Sum, factor, nullptr, GetParam());
    ASSERT_EQ(out, expected) << groups.size() << " hosts";
  }
}

TEST_P(AssociationTest, OneHostIsAPlainReduction) {
  constexpr std::size_t kCount = 6000;
  const Association association(regular(1, 6, false));
  for (const DType dtype : kTypes) {
    const auto contents = inputs(association.groups(), dtype, kCount);
    Bytes tree(contents[0].size());
    Bytes flat(contents[0].size());
    association.evaluate(tree.data(), pointers(contents), kCount, dtype, ReduceOp::Sum, 0.25,
                         nullptr, GetParam());
    reduce(flat.data(), pointers(contents), kCount, dtype, ReduceOp::Sum, 0.25, nullptr,
           GetParam());
    ASSERT_EQ(tree, flat) << name_of(dtype);
  }
}

TEST(Association, StepsOfSixHostsFoldTheSurplusFirst) {
  const Association association(regular(6, 1, false));
  using Step = Association::Step;
  EXPECT_EQ(association.steps(), (std::vector<Step>{{0, 4}, {1, 5}, {0, 1}, {2, 3}, {0, 2}}));
}

TEST(Association, GroupingOfFloatsIsVisible) {
  // 1 + 2^-24 is 1 in float32, 2^-24 + 2^-24 is not lost: the order decides.
  const std::array<float, 4> x{1.0f, 0x1p-24f, 0x1p-24f, 0x1p-24f};
  std::vector<const std::byte*> sources;
  for (const float& value : x) sources.push_back(reinterpret_cast<const std::byte*>(&value));
  float flat = 0;
  float tree = 0;
  Association(regular(1, 4, false))
      .evaluate(reinterpret_cast<std::byte*>(&flat), sources, 1, DType::Float32, ReduceOp::Sum);
  Association(regular(2, 2, false))
      .evaluate(reinterpret_cast<std::byte*>(&tree), sources, 1, DType::Float32, ReduceOp::Sum);
  EXPECT_EQ(flat, 1.0f);
  EXPECT_EQ(tree, 1.0f + 0x1p-23f);
}

TEST(Association, AThousandHostsFit) {
  const Groups groups = regular(1000, 1, false);
  std::vector<std::int64_t> x(1000);
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<std::int64_t>(i);
    sources.push_back(reinterpret_cast<const std::byte*>(&x[i]));
  }
  std::int64_t total = 0;
  Association(groups).evaluate(reinterpret_cast<std::byte*>(&total), sources, 1, DType::Int64,
                               ReduceOp::Sum);
  EXPECT_EQ(total, 499500);
}

}  // namespace
}  // namespace farandole

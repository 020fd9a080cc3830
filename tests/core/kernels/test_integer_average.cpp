/// Averages of integers are those of whole numbers without limits, whatever their sum is.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "cluster.h"
#include "kernels/integer_average.h"

namespace farandole::testing {
namespace {

constexpr DType kTypes[] = {DType::UInt8, DType::Int8,  DType::UInt16,
                            DType::Int16, DType::Int32, DType::Int64};

/// Sums of thousands of values without 128-bit numbers: quotient and remainder apart.
class Mean {
 public:
  explicit Mean(std::int64_t count) : count_(count) {}
  void add(std::int64_t value) {
    quotient_ += value / count_;
    remainder_ += value % count_;
  }
  [[nodiscard]] std::int64_t value() const {
    std::int64_t whole = quotient_ + remainder_ / count_;
    const std::int64_t rest = remainder_ % count_;
    if (whole > 0 && rest < 0) --whole;
    if (whole < 0 && rest > 0) ++whole;
    return whole;
  }

 private:
  std::int64_t count_;
  std::int64_t quotient_ = 0;
  std::int64_t remainder_ = 0;
};

template <typename Visit>
void with_type(DType dtype, Visit visit) {
  if (dtype == DType::UInt8) visit(std::uint8_t{});
  if (dtype == DType::Int8) visit(std::int8_t{});
  if (dtype == DType::UInt16) visit(std::uint16_t{});
  if (dtype == DType::Int16) visit(std::int16_t{});
  if (dtype == DType::Int32) visit(std::int32_t{});
  if (dtype == DType::Int64) visit(std::int64_t{});
}

/// Element of that rank: limits of the type first, then any.
template <typename T>
T value_of(Rank rank, std::size_t index) {
  constexpr T kLow = std::numeric_limits<T>::min();
  constexpr T kHigh = std::numeric_limits<T>::max();
  if (index == 0) return kHigh;
  if (index == 1) return kLow;
  if (index == 2) return rank % 2 == 0 ? kHigh : static_cast<T>(kHigh - 1);
  if (index == 3) return rank == 0 ? static_cast<T>(kLow + 1) : kLow;
  if (index == 4) return rank == 0 ? kLow : kHigh;
  auto bits = (static_cast<std::uint64_t>(rank) * 1000003 + index) * 0x9e3779b97f4a7c15U;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9U;
  return static_cast<T>((bits ^ bits >> 27) * 0x94d049bb133111ebU >> 7);
}

template <typename T>
std::vector<T> values_of(Rank rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of<T>(rank, i % 1000);
  return values;
}

template <typename T>
std::vector<T> mean_of(int size, std::size_t count) {
  std::vector<T> mean(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i >= 1000) {
      mean[i] = mean[i % 1000];
      continue;
    }
    Mean exact(size);
    for (Rank rank = 0; rank < size; ++rank) exact.add(value_of<T>(rank, i % 1000));
    mean[i] = static_cast<T>(exact.value());
  }
  return mean;
}

class IntegerAverages : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(Worlds, IntegerAverages,
                         ::testing::Values(Groups{{0, 1}}, Groups{{0, 1, 2}}, Groups{{0}, {1}},
                                           Groups{{0}, {1}, {2}}, Groups{{0, 3}, {1, 2}},
                                           Groups{{0, 1}, {2}}),
                         world_name);

template <typename T>
void expect_average(Engine& engine, Kind kind, DType dtype, int size, std::size_t count,
                    const std::string& name) {
  const Rank rank = engine.rank();
  std::vector<T> one = values_of<T>(rank, count);
  std::vector<T> other = one;
  const std::vector<T> given = one;
  std::vector<T> expected = mean_of<T>(size, count);
  const Shape shape{static_cast<std::int64_t>(count)};
  auto* const in = reinterpret_cast<std::byte*>(one.data());
  std::vector<T> result(count);
  auto* const out = kind == Kind::Reducescatter ? reinterpret_cast<std::byte*>(result.data()) : in;
  auto* const second = reinterpret_cast<std::byte*>(other.data());
  std::vector<T> second_result(count);
  Submission submission{.kind = kind, .name = name, .grouped = true, .op = ReduceOp::Average};
  submission.root = kind == Kind::Reduce ? size - 1 : -1;
  submission.tensors.push_back({.in = in, .out = out, .dtype = dtype, .shape = shape});
  submission.tensors.push_back({.in = second,
                                .out = reinterpret_cast<std::byte*>(second_result.data()),
                                .dtype = dtype,
                                .shape = shape});
  auto handle = engine.submit(blocking(std::move(submission)));
  ASSERT_TRUE(static_cast<bool>(handle));
  if (*handle != 0) {
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error) << work->error->what();
  }
  if (kind == Kind::Reduce && rank != size - 1) expected = given;
  if (kind == Kind::Reducescatter) {
    const auto ranks = static_cast<std::size_t>(size);
    const auto self = static_cast<std::size_t>(rank);
    const std::size_t first = count / ranks * self + std::min(self, count % ranks);
    const std::size_t rows = count / ranks + (self < count % ranks ? 1 : 0);
    expected.erase(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(first));
    expected.resize(rows);
    result.resize(rows);
    second_result.resize(rows);
    EXPECT_EQ(result, expected) << name;
    EXPECT_EQ(one, given) << name;
  } else {
    EXPECT_EQ(one, expected) << name;
  }
  EXPECT_EQ(second_result, expected) << name;
  EXPECT_EQ(other, given) << name;
}

TEST_P(IntegerAverages, are_exact_on_every_path) {
  Cluster cluster(GetParam());
  until_fast(cluster, 20, [&](Rank, Engine& engine) {
    for (const DType dtype : kTypes) {
      with_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool longest = dtype == DType::Int8 || dtype == DType::Int64;
        for (const Kind kind : {Kind::Allreduce, Kind::Reduce, Kind::Reducescatter}) {
          for (const std::size_t count : {0U, 5U, 1000U, 270001U}) {
            if (count > 1000 && !longest) continue;  // more than is summed at a time
            // Again, as what has been negotiated once may be proposed.
            for (int round = 0; round < (count == 1000 ? 4 : 1); ++round) {
              expect_average<T>(engine, kind, dtype, cluster.size(), count,
                                std::string(name_of(dtype)) + " " + std::to_string(count));
            }
          }
        }
      });
    }
  });
}

TEST_P(IntegerAverages, count_ranks_that_have_joined_as_zeros) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank != 0) {
      std::vector<std::int64_t> values(3, std::numeric_limits<std::int64_t>::max());
      Submission submission = allreduce_of(values, "x");
      submission.op = ReduceOp::Average;
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle));
      ASSERT_FALSE(finish(engine, *handle)->error);
      Mean mean(cluster.size());
      for (int i = 1; i < cluster.size(); ++i) mean.add(std::numeric_limits<std::int64_t>::max());
      EXPECT_EQ(values, std::vector<std::int64_t>(3, mean.value()));
    }
    auto handle = engine.submit({.kind = Kind::Join, .mode = Mode::Awaited});
    ASSERT_TRUE(static_cast<bool>(handle));
    ASSERT_FALSE(finish(engine, *handle)->error);
  });
}

TEST(IntegerAverage, of_thousands_of_ranks_is_exact) {
  constexpr int kRanks = 3000;
  constexpr std::size_t kCount = 300;
  for (const DType dtype : kTypes) {
    with_type(dtype, [&](auto zero) {
      using T = decltype(zero);
      const std::vector<T> expected = mean_of<T>(kRanks, kCount);
      std::vector<std::vector<T>> inputs;
      std::vector<const std::byte*> sources;
      const std::size_t parts = wide_parts(dtype);
      std::vector<std::int64_t> sums(kCount * parts);
      std::vector<std::int64_t> wide(kCount * parts);
      for (Rank rank = 0; rank < kRanks; ++rank) {
        inputs.push_back(values_of<T>(rank, kCount));
        sources.push_back(reinterpret_cast<const std::byte*>(inputs.back().data()));
        widen(reinterpret_cast<std::byte*>(wide.data()), kCount, sources.back(), kCount, dtype,
              1.0);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += wide[i];
      }
      std::vector<T> out(kCount);
      auto* const bytes = reinterpret_cast<std::byte*>(out.data());
      average_integers(bytes, sources, kCount, dtype, 1.0 / kRanks);
      EXPECT_EQ(out, expected);
      narrow(bytes, reinterpret_cast<const std::byte*>(sums.data()), kCount, kCount, dtype,
             1.0 / kRanks);
      EXPECT_EQ(out, expected);
    });
  }
}

TEST(IntegerAverage, limits_what_a_factor_makes_of_it) {
  const std::vector<std::int8_t> values{100, -100, 3, -3};
  const std::vector<const std::byte*> sources(2, reinterpret_cast<const std::byte*>(values.data()));
  std::vector<std::int8_t> out(4);
  auto* const bytes = reinterpret_cast<std::byte*>(out.data());
  for (const auto& [factor, expected] : std::vector<std::pair<double, std::vector<std::int8_t>>>{
           {1.0, {127, -128, 6, -6}},
           {-0.75, {-128, 127, -4, 4}},
           {1e30, {127, -128, 127, -128}},
           {std::numeric_limits<double>::quiet_NaN(), {0, 0, 0, 0}}}) {
    average_integers(bytes, sources, 4, DType::Int8, factor);
    EXPECT_EQ(out, expected) << factor;
  }
  const std::vector<std::int64_t> longs{std::numeric_limits<std::int64_t>::max(), -3};
  const std::vector<const std::byte*> both(2, reinterpret_cast<const std::byte*>(longs.data()));
  std::vector<std::int64_t> result(2);
  average_integers(reinterpret_cast<std::byte*>(result.data()), both, 2, DType::Int64, 0.75);
  EXPECT_EQ(result, (std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max(), -4}));
}

}  // namespace
}  // namespace farandole::testing

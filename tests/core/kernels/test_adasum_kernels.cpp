// The arithmetic of Adasum at every level against a plain one, bit for bit.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "kernel_reference.h"
#include "kernels/adasum.h"
#include "odd_arithmetic.h"

namespace farandole {
namespace {

using reference::Bytes;
using reference::with_float;

constexpr std::array kTypes{DType::Float16, DType::BFloat16, DType::Float32, DType::Float64};
constexpr std::array kLevelsToTry{Level::Baseline, Level::Avx2, Level::Avx512};
/// Around a vector, a group of lanes, a tile of half types and a block.
constexpr std::array<std::size_t, 14> kCounts{0,  1,   2,   7,   15,  16,   17,
                                              33, 511, 512, 513, 700, 4095, 4096};

template <typename T>
double wide(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}
template <typename T>
T narrow(double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  if constexpr (sizeof(T) == 2) {
    return T::from(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

std::vector<double> widened(const Bytes& bytes, DType dtype) {
  return with_float(dtype, [&]<typename T>() {
    std::vector<double> result;
    for (const T value : reference::values<T>(bytes)) result.push_back(wide(value));
    return result;
  });
}

Bytes narrowed(const std::vector<double>& values, DType dtype) {
  return with_float(dtype, [&]<typename T>() {
    std::vector<T> result;
    for (const double value : values) result.push_back(narrow<T>(value));
    return reference::bytes(result);
  });
}

Bytes random_vector(std::size_t count, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<double> values(count);
  for (double& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return narrowed(values, dtype);
}

double plain_product(const std::vector<double>& a, const std::vector<double>& b) {
  std::array<double, 16> lanes{};
  for (std::size_t i = 0; i < a.size(); ++i) lanes[i % 16] += a[i] * b[i];
  for (std::size_t apart = 8; apart > 0; apart /= 2) {
    for (std::size_t i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  }
  return lanes[0];
}

AdasumProducts of_whole(const Bytes& a, const Bytes& b, DType dtype,
                        const AdasumScales& scales = {}) {
  AdasumTotal total;
  const std::size_t block = kAdasumBlock * size_of(dtype);
  for (std::size_t at = 0; at < a.size(); at += block) {
    const std::size_t bytes = std::min(block, a.size() - at);
    total.add(adasum_products(a.data() + at, b.data() + at, bytes / size_of(dtype), dtype, scales));
  }
  return total.value();
}

class AdasumKernels : public ::testing::TestWithParam<Level> {
  void SetUp() override {
    if (!supported(GetParam())) GTEST_SKIP() << "this processor has no " << name_of(GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, AdasumKernels, ::testing::ValuesIn(kLevelsToTry),
                         [](const auto& level) { return std::string(name_of(level.param)); });

TEST_P(AdasumKernels, products_have_the_bits_of_sixteen_lanes) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
        Bytes a = random_vector(count, dtype, 1);
        Bytes b = random_vector(count, dtype, 2);
        const auto x = widened(a, dtype);
        const auto y = widened(b, dtype);
        a.insert(a.begin(), shift, std::byte{0x7f});
        b.insert(b.begin(), shift, std::byte{0x7f});
        const AdasumProducts got =
            adasum_products(a.data() + shift, b.data() + shift, count, dtype, {}, GetParam());
        EXPECT_EQ(got.ab, plain_product(x, y)) << name_of(dtype) << " " << count;
        EXPECT_EQ(got.aa, plain_product(x, x)) << name_of(dtype) << " " << count;
        EXPECT_EQ(got.bb, plain_product(y, y)) << name_of(dtype) << " " << count;
      }
    }
  }
}

TEST_P(AdasumKernels, combinations_have_the_bits_of_float64_rounded_at_the_end) {
  const AdasumWeights weights{.a = 0.7312345678912345, .b = -1.3412345678912345};
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      Bytes a = random_vector(count, dtype, 3);
      Bytes b = random_vector(count, dtype, 4);
      auto x = widened(a, dtype);
      auto y = widened(b, dtype);
      if (count > 15) {
        x[count - 1] = std::numeric_limits<double>::infinity();
        x[count - 2] = -std::numeric_limits<double>::quiet_NaN();
        y[count - 3] = 0x1.8p-24;  // rounds as a subnormal of float16
        x[count - 3] = 0;
        a = narrowed(x, dtype);
        b = narrowed(y, dtype);
        y = widened(b, dtype);
      }
      std::vector<double> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = weights.a * x[i] + weights.b * y[i];
      const Bytes want = narrowed(values, dtype);
      Bytes got(a.size() + 1);  // at an odd address
      adasum_combine(got.data() + 1, a.data(), b.data(), count, dtype, weights, GetParam());
      EXPECT_EQ(Bytes(got.begin() + 1, got.end()), want) << name_of(dtype) << " " << count;
      adasum_combine(b.data(), a.data(), b.data(), count, dtype, weights, GetParam());
      EXPECT_EQ(b, want) << "in place of b: " << name_of(dtype) << " " << count;
      b = narrowed(y, dtype);
      adasum_combine(a.data(), a.data(), b.data(), count, dtype, weights, GetParam());
      EXPECT_EQ(a, want) << "in place of a: " << name_of(dtype) << " " << count;
    }
  }
}

#if defined(FARANDOLE_ODD_ARITHMETIC)
TEST_P(AdasumKernels, settings_of_the_calling_thread_do_not_show) {
  const std::vector<double> tiny(17, 0x1p-1060);
  const Bytes a = narrowed(tiny, DType::Float64);
  Bytes out(a.size());
  bool lasted = false;
  {
    const OddArithmetic odd;
    adasum_combine(out.data(), a.data(), a.data(), 17, DType::Float64, {}, GetParam());
    lasted = OddArithmetic::lasts();
  }
  EXPECT_TRUE(lasted);
  for (const double value : widened(out, DType::Float64)) EXPECT_EQ(value, 0x1p-1059);
}
#endif

AdasumProducts by_rounds(std::vector<AdasumProducts> blocks) {
  while (blocks.size() > 1) {
    std::vector<AdasumProducts> next;
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      next.push_back(blocks[i]);
      if (i + 1 == blocks.size()) break;
      next.back().ab += blocks[i + 1].ab;
      next.back().aa += blocks[i + 1].aa;
      next.back().bb += blocks[i + 1].bb;
    }
    blocks = std::move(next);
  }
  return blocks.empty() ? AdasumProducts{} : blocks.front();
}

TEST(AdasumTotalTest, blocks_add_up_by_pairs) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> value(-1, 1);
  std::vector<AdasumProducts> blocks;
  AdasumTotal total;
  for (int count = 0; count < 70; ++count) {
    const AdasumProducts want = by_rounds(blocks);
    const AdasumProducts got = total.value();
    EXPECT_EQ(got.ab, want.ab) << count;
    EXPECT_EQ(got.aa, want.aa) << count;
    EXPECT_EQ(got.bb, want.bb) << count;
    blocks.push_back({value(random), value(random), value(random)});
    total.add(blocks.back());
  }
}

TEST(AdasumWeightsTest, the_weight_of_practically_nothing_is_one) {
  const AdasumWeights weights =
      adasum_weights({.ab = 1e-160, .aa = std::ldexp(1.0, -511) / 2, .bb = 4.0});
  EXPECT_EQ(weights.a, 1.0);
  EXPECT_EQ(weights.b, 1.0 - 1e-160 / 8);
  EXPECT_EQ(adasum_weights({.ab = 3.0, .aa = std::ldexp(1.0, -511), .bb = 1.0}).a,
            1.0 - 1.5 * std::ldexp(1.0, 511));
}

TEST(AdasumWeightsTest, parallel_vectors_whose_squares_overflow_average) {
  const std::size_t count = 3 * kAdasumBlock + 17;
  const double root = 0x1p512;  // √largest
  for (const double other : {root, root / 8, 3.0, 0x1p-250}) {
    std::vector<double> x(count);
    std::vector<double> y(count);
    for (std::size_t i = 0; i < count; ++i) {
      const double direction = 1.0 + static_cast<double>(i % 7) / 8;
      x[i] = root * direction;
      y[i] = other * direction;
    }
    const Bytes a = narrowed(x, DType::Float64);
    const Bytes b = narrowed(y, DType::Float64);
    for (const bool swap : {false, true}) {
      const Bytes& one = swap ? b : a;
      const Bytes& two = swap ? a : b;
      AdasumProducts products = of_whole(one, two, DType::Float64);
      const AdasumScales scales = adasum_scales(products, DType::Float64);
      EXPECT_NE(scales, AdasumScales{});
      products = of_whole(one, two, DType::Float64, scales);
      const AdasumWeights weights = adasum_weights(products, scales);
      Bytes out(a.size());
      adasum_combine(out.data(), one.data(), two.data(), count, DType::Float64, weights);
      const auto got = widened(out, DType::Float64);
      for (std::size_t i = 0; i < count; ++i) {
        const double want = x[i] / 2 + y[i] / 2;
        ASSERT_NEAR(got[i] / want, 1.0, 1e-12) << other << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace farandole

// Every level against the plain reference, bit for bit.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

#include "kernel_reference.h"
#include "odd_arithmetic.h"

namespace farandole {
namespace {

using reference::Bytes;

constexpr std::array kAll{DType::UInt8,   DType::Int8,    DType::UInt16,  DType::Int16,
                          DType::Int32,   DType::Int64,   DType::Float16, DType::BFloat16,
                          DType::Float32, DType::Float64, DType::Bool};
constexpr std::array kOps{ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max};
constexpr std::array kLevelsToTry{Level::Baseline, Level::Avx2, Level::Avx512};
/// Around the widths of vectors and of unrolled groups of them (64 elements of a half type at most
/// per group at AVX-512, 256 bytes), and beyond a block of 4096 bytes.
constexpr std::array<std::size_t, 12> kCounts{0, 1, 3, 7, 16, 31, 33, 64, 65, 129, 517, 4099};

/// Bytes at an odd address with guards around them.
class Odd {
 public:
  Odd(const Bytes& content, std::size_t shift)
      : shift_(shift), size_(content.size()), memory_(content.size() + shift + 64, kGuard) {
    if (size_ > 0) std::memcpy(data(), content.data(), size_);
  }
  [[nodiscard]] std::byte* data() { return memory_.data() + shift_; }
  [[nodiscard]] Bytes content() const {
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(shift_);
    return {begin, begin + static_cast<std::ptrdiff_t>(size_)};
  }
  [[nodiscard]] bool guards_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < shift_ || i >= shift_ + size_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kGuard{0xa5};
  std::size_t shift_;
  std::size_t size_;
  Bytes memory_;
};

std::string first_difference(const Bytes& got, const Bytes& expected, DType dtype) {
  const std::size_t width = size_of(dtype);
  for (std::size_t i = 0; i < got.size(); i += width) {
    if (std::memcmp(&got[i], &expected[i], width) != 0) {
      std::string text = "element " + std::to_string(i / width) + ": got 0x";
      const char* digits = "0123456789abcdef";
      for (const Bytes* side : {&got, &expected}) {
        for (std::size_t byte = width; byte-- > 0;) {
          const auto value = static_cast<unsigned>((*side)[i + byte]);
          text += digits[value >> 4];
          text += digits[value & 15];
        }
        if (side == &got) text += ", expected 0x";
      }
      return text;
    }
  }
  return "";
}

class KernelsTest : public testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    if (!supported(GetParam())) {
      GTEST_SKIP() << "this processor or build lacks " << name_of(GetParam());
    }
  }
  std::mt19937 random_{20240817};  // NOLINT: the same numbers in every run
};

INSTANTIATE_TEST_SUITE_P(Levels, KernelsTest, testing::ValuesIn(kLevelsToTry),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_P(KernelsTest, ReduceMatchesReferenceForEveryTypeOperationCountAndAlignment) {
  for (const DType dtype : kAll) {
    for (const ReduceOp op : kOps) {
      for (const std::size_t count : kCounts) {
        for (std::size_t p = 1; p <= 5; ++p) {
          std::vector<Bytes> contents;
          std::vector<Odd> odd;
          std::vector<const std::byte*> sources;
          for (std::size_t k = 0; k < p; ++k) {
            contents.push_back(reference::mixed(dtype, count, random_));
            odd.emplace_back(contents[k], 1 + (3 * k + count) % 17);
          }
          for (Odd& source : odd) sources.push_back(source.data());
          const double postscale = random_() % 3 == 0 ? 1.0 : 1.0 / static_cast<double>(p + 1);
          const Bytes expected = reference::reduce(contents, dtype, op, postscale);
          Odd out(Bytes(expected.size()), 5);
          Odd also(Bytes(expected.size()), 2);
          const bool twice = random_() % 2 == 0;
          reduce(out.data(), sources, count, dtype, op, postscale, twice ? also.data() : nullptr,
                 GetParam());
          ASSERT_EQ(first_difference(out.content(), expected, dtype), "")
              << name_of(dtype) << ' ' << name_of(op) << " of " << p << " × " << count << " × "
              << postscale;
          ASSERT_TRUE(out.guards_intact());
          ASSERT_EQ(also.content(), twice ? expected : Bytes(expected.size()));
          ASSERT_TRUE(also.guards_intact());
        }
      }
    }
  }
}

TEST_P(KernelsTest, ReduceMayWriteOverAnySource) {
  constexpr std::size_t kCount = 2500;
  for (const DType dtype : kAll) {
    for (std::size_t p = 1; p <= 4; ++p) {
      for (std::size_t target = 0; target < p; ++target) {
        for (const bool into_also : {false, true}) {
          std::vector<Bytes> contents;
          for (std::size_t k = 0; k < p; ++k) {
            contents.push_back(reference::mixed(dtype, kCount, random_));
          }
          const Bytes expected = reference::reduce(contents, dtype, ReduceOp::Sum, 0.5);
          std::vector<Bytes> memory = contents;
          std::vector<const std::byte*> sources;
          for (const Bytes& source : memory) sources.push_back(source.data());
          Bytes other(expected.size());
          std::byte* const own = memory[target].data();
          reduce(into_also ? other.data() : own, sources, kCount, dtype, ReduceOp::Sum, 0.5,
                 into_also ? own : other.data(), GetParam());
          ASSERT_EQ(first_difference(memory[target], expected, dtype), "") << name_of(dtype);
          ASSERT_EQ(other, expected) << name_of(dtype);
          for (std::size_t k = 0; k < p; ++k) {
            if (k == target) continue;
            ASSERT_EQ(memory[k], contents[k]) << "a source was changed";
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, ReduceDoesNotDependOnHowTheRangeIsCut) {
  constexpr std::size_t kCount = 3001;
  for (const DType dtype : kAll) {
    const std::size_t width = size_of(dtype);
    std::vector<Bytes> contents;
    for (int k = 0; k < 3; ++k) contents.push_back(reference::mixed(dtype, kCount, random_));
    const Bytes expected = reference::reduce(contents, dtype, ReduceOp::Sum, 1.0 / 3);
    for (const std::size_t step : {std::size_t{1}, std::size_t{61}, std::size_t{1024}}) {
      Bytes out(expected.size());
      for (std::size_t at = 0; at < kCount; at += step) {
        const std::array<const std::byte*, 3> sources{contents[0].data() + at * width,
                                                      contents[1].data() + at * width,
                                                      contents[2].data() + at * width};
        reduce(out.data() + at * width, sources, std::min(step, kCount - at), dtype, ReduceOp::Sum,
               1.0 / 3, nullptr, GetParam());
      }
      ASSERT_EQ(first_difference(out, expected, dtype), "") << name_of(dtype) << " by " << step;
    }
  }
}

TEST_P(KernelsTest, TwoSourcesCommuteBitForBit) {
  constexpr std::size_t kCount = 20000;
  for (const DType dtype : kAll) {
    for (const ReduceOp op : kOps) {
      const Bytes a = reference::mixed(dtype, kCount, random_);
      const Bytes b = reference::mixed(dtype, kCount, random_);
      Bytes forth(a.size());
      Bytes back(a.size());
      reduce(forth.data(), std::array{a.data(), b.data()}, kCount, dtype, op, 1.0, nullptr,
             GetParam());
      reduce(back.data(), std::array{b.data(), a.data()}, kCount, dtype, op, 1.0, nullptr,
             GetParam());
      ASSERT_EQ(first_difference(forth, back, dtype), "") << name_of(dtype) << ' ' << name_of(op);
    }
  }
}

TEST_P(KernelsTest, ScaleCopyMatchesReference) {
  const std::array factors{1.0, 0.5, 1.0 / 3, -2.5, 1e3, 1e-6, 1e30, 1e300, 0.0, 1.0 + 1e-12};
  for (const DType dtype : kAll) {
    for (const std::size_t count : kCounts) {
      for (const double factor : factors) {
        const Bytes content = reference::mixed(dtype, count, random_);
        const Bytes expected = reference::scale(content, dtype, factor);
        Odd in(content, 3);
        Odd out(Bytes(content.size()), 1);
        scale_copy(out.data(), in.data(), count, dtype, factor, GetParam());
        ASSERT_EQ(first_difference(out.content(), expected, dtype), "")
            << name_of(dtype) << " × " << factor << ", " << count << " elements";
        ASSERT_TRUE(out.guards_intact());
        scale_copy(in.data(), in.data(), count, dtype, factor, GetParam());
        ASSERT_EQ(in.content(), expected) << "in place, " << name_of(dtype) << " × " << factor;
      }
    }
  }
}

TEST_P(KernelsTest, PostscaleEqualsScalingTheRoundedResultUnlessTheSumIsWide) {
  constexpr std::size_t kCount = 5000;
  for (const DType dtype : kAll) {
    if (dtype == DType::Float16 || dtype == DType::BFloat16) continue;
    const Bytes a = reference::mixed(dtype, kCount, random_);
    const Bytes b = reference::mixed(dtype, kCount, random_);
    const std::array sources{a.data(), b.data()};
    Bytes at_once(a.size());
    Bytes afterwards(a.size());
    reduce(at_once.data(), sources, kCount, dtype, ReduceOp::Sum, 1.0 / 7, nullptr, GetParam());
    reduce(afterwards.data(), sources, kCount, dtype, ReduceOp::Sum, 1.0, nullptr, GetParam());
    scale_copy(afterwards.data(), afterwards.data(), kCount, dtype, 1.0 / 7, GetParam());
    ASSERT_EQ(first_difference(at_once, afterwards, dtype), "") << name_of(dtype);
  }
}

/// The sums fit no float16, or need more digits than a half type has.
TEST_P(KernelsTest, TheAverageOfHalvesIsRoundedOnce) {
  const auto average = [](DType dtype, const std::vector<float>& values) {
    return reference::with_float(dtype, [&]<typename T>() {
      constexpr std::size_t kCount = 67;
      std::vector<Bytes> contents;
      for (const float value : values) {
        contents.push_back(reference::bytes(
            std::vector<T>(kCount, reference::rounded<T>(static_cast<reference::Wide<T>>(value)))));
      }
      std::vector<const std::byte*> sources;
      for (const Bytes& content : contents) sources.push_back(content.data());
      Bytes out(contents[0].size());
      Bytes also(contents[0].size());
      reduce(out.data(), sources, kCount, dtype, ReduceOp::Sum,
             1.0 / static_cast<double>(values.size()), also.data(), GetParam());
      EXPECT_EQ(out, also);
      const auto got = reference::values<T>(out);
      EXPECT_EQ(first_difference(out, reference::bytes(std::vector<T>(kCount, got[0])), dtype), "");
      return static_cast<float>(reference::widened(got[0]));
    });
  };
  EXPECT_EQ(average(DType::Float16, {20000, 20000, 20000, 20000}), 20000.0f);
  EXPECT_EQ(average(DType::Float16, {65504, 65504}), 65504.0f);
  EXPECT_EQ(average(DType::Float16, {-65504, -65504, -65504}), -65504.0f);
  // 4099 is no float16; rounded to 4100 first, a third of it would be 1367.
  EXPECT_EQ(average(DType::Float16, {2048, 2048, 3}), 1366.0f);
  // 1028 is no bfloat16; rounded to 1024 first, a fifth of it would be 205.
  EXPECT_EQ(average(DType::BFloat16, {256, 256, 256, 256, 4}), 206.0f);
}

/// All pairs (h, +0): the sum is h again, converted to float32 and back.
TEST_P(KernelsTest, EveryHalfSurvivesTheWayToFloat32AndBack) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const Bytes in = reference::bytes(all);
    const Bytes zero(in.size());
    Bytes out(in.size());
    reduce(out.data(), std::array{in.data(), zero.data()}, all.size(), dtype, ReduceOp::Max, 1.0,
           nullptr, GetParam());
    ASSERT_EQ(
        first_difference(out, reference::reduce({in, zero}, dtype, ReduceOp::Max, 1.0), dtype), "");
    reduce(out.data(), std::array{in.data(), in.data()}, all.size(), dtype, ReduceOp::Min, 1.0,
           nullptr, GetParam());
    const std::uint16_t infinity = dtype == DType::Float16 ? 0x7c00 : 0x7f80;
    const std::uint16_t nan = dtype == DType::Float16 ? 0x7e00 : 0x7fc0;
    const auto got = reference::values<std::uint16_t>(out);
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(got[i], (all[i] & 0x7fff) > infinity ? nan : all[i]) << name_of(dtype);
    }
  }
}

/// Sums of two halves land on and beside every rounding boundary: subnormals, ties, overflow.
TEST_P(KernelsTest, RoundingOfHalvesIsToNearestEven) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const Bytes a = reference::bytes(all);
    for (int round = 0; round < 6; ++round) {
      // Partners of nearly the same size: exponents 0 to 12 below, any mantissa.
      std::vector<std::uint16_t> partners(all);
      for (auto& partner : partners) {
        const int bits = dtype == DType::Float16 ? 10 : 7;
        const int magnitude = (partner & 0x7fff) - (static_cast<int>(random_() % 13) << bits) -
                              static_cast<int>(random_() & ((1u << bits) - 1));
        partner = static_cast<std::uint16_t>(std::max(magnitude, 0) | (random_() & 0x8000));
      }
      const Bytes b = reference::bytes(partners);
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product}) {
        Bytes out(a.size());
        reduce(out.data(), std::array{a.data(), b.data()}, all.size(), dtype, op, 1.0, nullptr,
               GetParam());
        ASSERT_EQ(first_difference(out, reference::reduce({a, b}, dtype, op, 1.0), dtype), "")
            << name_of(dtype) << ' ' << name_of(op);
      }
    }
  }
}

TEST_P(KernelsTest, IntegerAverageTruncatesTowardZero) {
  const std::array<std::int32_t, 5> a{-7, 7, -1, 3, 0};
  const std::array<std::int32_t, 5> zero{};
  std::array<std::int32_t, 5> out{};
  const std::array sources{reinterpret_cast<const std::byte*>(a.data()),
                           reinterpret_cast<const std::byte*>(zero.data())};
  reduce(reinterpret_cast<std::byte*>(out.data()), sources, out.size(), DType::Int32, ReduceOp::Sum,
         0.5, nullptr, GetParam());
  EXPECT_EQ(out, (std::array<std::int32_t, 5>{-3, 3, 0, 1, 0}));
}

TEST_P(KernelsTest, AverageOfBooleansIsLogicalAnd) {
  const std::array<std::uint8_t, 4> a{0, 1, 0, 2};
  const std::array<std::uint8_t, 4> b{0, 0, 1, 1};
  std::array<std::uint8_t, 4> out{};
  const std::array sources{reinterpret_cast<const std::byte*>(a.data()),
                           reinterpret_cast<const std::byte*>(b.data())};
  reduce(reinterpret_cast<std::byte*>(out.data()), sources, out.size(), DType::Bool,
         ReduceOp::Average, 0.5, nullptr, GetParam());
  EXPECT_EQ(out, (std::array<std::uint8_t, 4>{0, 0, 0, 1}));
}

TEST_P(KernelsTest, ManySourcesMatchReference) {
  constexpr std::size_t kSources = 70;
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Int64}) {
    std::vector<Bytes> contents;
    std::vector<const std::byte*> sources;
    for (std::size_t k = 0; k < kSources; ++k) {
      contents.push_back(reference::mixed(dtype, 700, random_));
    }
    for (const Bytes& content : contents) sources.push_back(content.data());
    Bytes out(contents[0].size());
    reduce(out.data(), sources, 700, dtype, ReduceOp::Sum, 1.0, nullptr, GetParam());
    ASSERT_EQ(first_difference(out, reference::reduce(contents, dtype, ReduceOp::Sum, 1.0), dtype),
              "");
  }
}

#if defined(FARANDOLE_ODD_ARITHMETIC)
TEST_P(KernelsTest, SettingsOfTheCallingThreadDoNotShowAndComeBack) {
  const std::array<float, 3> tiny{0x1p-140f, 1.0f, 1.0f};
  const std::array<float, 3> other{0x1p-141f, 0x1.8p-24f, 0x1p-24f};
  std::array<float, 3> out{};
  const std::array sources{reinterpret_cast<const std::byte*>(tiny.data()),
                           reinterpret_cast<const std::byte*>(other.data())};
  bool lasted = false;
  {
    const OddArithmetic odd;
    reduce(reinterpret_cast<std::byte*>(out.data()), sources, out.size(), DType::Float32,
           ReduceOp::Sum, 1.0, nullptr, GetParam());
    lasted = OddArithmetic::lasts();
  }
  EXPECT_TRUE(lasted);
  EXPECT_EQ(out[0], 0x1.8p-140f);
  EXPECT_EQ(out[1], 0x1.000002p+0f);
  EXPECT_EQ(out[2], 1.0f);
}
#endif

TEST_P(KernelsTest, AveragesOfLargeIntegersAreExact) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 60) + 1;
  for (const std::int64_t ranks : {2, 3, 7, 1000}) {
    const std::vector<std::int64_t> sums{kLarge,
                                         -kLarge,
                                         std::numeric_limits<std::int64_t>::max(),
                                         std::numeric_limits<std::int64_t>::min(),
                                         7,
                                         -7,
                                         0};
    std::vector<std::int64_t> expected;
    for (const std::int64_t sum : sums) expected.push_back(sum / ranks);
    const Bytes in = reference::bytes(sums);
    Bytes got(in.size());
    scale_copy(got.data(), in.data(), sums.size(), DType::Int64, 1.0 / static_cast<double>(ranks),
               GetParam());
    EXPECT_EQ(got, reference::bytes(expected)) << ranks;
  }
}

TEST_P(KernelsTest, TheAverageOfEqualIntegersIsThatInteger) {
  const auto expect = [](DType dtype, std::int64_t value, std::int64_t ranks) {
    const auto as = [dtype](std::int64_t number) {
      return reference::with_type(dtype, [number]<typename T>() -> Bytes {
        if constexpr (std::is_integral_v<T>) {
          return reference::bytes(std::vector<T>(67, static_cast<T>(number)));
        }
        return {};
      });
    };
    const Bytes sum = as(value * ranks);
    Bytes got(sum.size());
    scale_copy(got.data(), sum.data(), 67, dtype, 1.0 / static_cast<double>(ranks), GetParam());
    EXPECT_EQ(got, as(value)) << name_of(dtype) << " " << value << " of " << ranks;
  };
  for (std::int64_t ranks = 1; ranks <= 1000; ++ranks) {
    for (const std::int64_t value : {1, -1, 3, -1023, 1000003}) {
      expect(DType::Int32, value, ranks);
      expect(DType::Int64, value * 4099, ranks);
    }
    if (ranks <= 127) expect(DType::Int8, -1, ranks);
    if (ranks <= 255) expect(DType::UInt8, 1, ranks);
    expect(DType::Int16, -32, ranks);
    expect(DType::UInt16, 65, ranks);
  }
}

}  // namespace
}  // namespace farandole

#include "kernels/integer_average.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/default_arithmetic.h"
#include "kernels/kernels.h"

namespace farandole {
namespace {

__extension__ using Total = __int128;

/// So many values at a time, which stay in the first-level cache.
constexpr std::size_t kBlock = 512;
/// The weight of the upper half of an int64.
constexpr std::int64_t kUpper = std::int64_t{1} << 32;

template <typename Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::UInt8:
      return visit(std::uint8_t{});
    case DType::Int8:
      return visit(std::int8_t{});
    case DType::UInt16:
      return visit(std::uint16_t{});
    case DType::Int16:
      return visit(std::int16_t{});
    case DType::Int32:
      return visit(std::int32_t{});
    case DType::Int64:
      return visit(std::int64_t{});
    default:
      assert(false && "not an integer");
  }
}

template <typename T>
T at(const std::byte* memory, std::size_t index) {
  T value;
  std::memcpy(&value, memory + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put(std::byte* memory, std::size_t index, T value) {
  std::memcpy(memory + index * sizeof(T), &value, sizeof(T));
}

template <typename T, typename Wide>
T limited(Wide value) {
  constexpr T kLowest = std::numeric_limits<T>::min();
  constexpr T kHighest = std::numeric_limits<T>::max();
  if (value < static_cast<Wide>(kLowest)) return kLowest;
  if (value > static_cast<Wide>(kHighest)) return kHighest;
  return static_cast<T>(value);
}

/// n if the factor is that of an average over n values, 1 / n rounded; else 0.
std::int64_t divisor_of(double factor) {
  if (!(factor > 0x1p-31 && factor <= 1.0)) return 0;
  const auto whole = static_cast<std::int64_t>(1.0 / factor + 0.5);
  return 1.0 / static_cast<double>(whole) == factor ? whole : 0;
}

class Scale {
 public:
  explicit Scale(double factor) : factor_(factor), divisor_(divisor_of(factor)) {}

  template <typename T, typename Sum>
  [[nodiscard]] T of(Sum sum) const {
    if (divisor_ != 0) return limited<T>(sum / static_cast<Sum>(divisor_));
    const double product = static_cast<double>(sum) * factor_;
    constexpr double kBeyond = 0x1p63;
    if (product != product) return 0;
    if (product >= kBeyond) return std::numeric_limits<T>::max();
    if (product < -kBeyond) return std::numeric_limits<T>::min();
    return limited<T>(static_cast<std::int64_t>(product));
  }

 private:
  double factor_;
  std::int64_t divisor_;
};

}  // namespace

bool is_integer(DType dtype) noexcept {
  return static_cast<std::size_t>(dtype) <= static_cast<std::size_t>(DType::Int64);
}

std::size_t wide_parts(DType dtype) noexcept { return dtype == DType::Int64 ? 2 : 1; }

void widen(std::byte* wide, std::size_t stride, const std::byte* in, std::size_t count, DType dtype,
           double prescale) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::array<std::byte, kBlock * sizeof(T)> scaled;
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t now = std::min(kBlock, count - begin);
      const std::byte* from = in + begin * sizeof(T);
      if (prescale != 1.0) {
        scale_copy(scaled.data(), from, now, dtype, prescale);
        from = scaled.data();
      }
      for (std::size_t i = 0; i < now; ++i) {
        const auto value = static_cast<std::int64_t>(at<T>(from, i));
        if constexpr (sizeof(T) < 8) {
          put(wide, begin + i, value);
        } else {
          put(wide, begin + i, value >> 32);
          put(wide, stride + begin + i, value & (kUpper - 1));
        }
      }
    }
  });
}

void narrow(std::byte* out, const std::byte* wide, std::size_t stride, std::size_t count,
            DType dtype, double factor) {
  const DefaultArithmetic guard;
  const Scale scale(factor);
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = at<std::int64_t>(wide, i);
      if constexpr (sizeof(T) < 8) {
        put(out, i, scale.of<T>(first));
      } else {
        const Total upper = static_cast<Total>(first) * kUpper;
        put(out, i, scale.of<T>(upper + at<std::int64_t>(wide, stride + i)));
      }
    }
  });
}

void average_integers(std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                      DType dtype, double factor) {
  const DefaultArithmetic guard;
  const Scale scale(factor);
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using Sum = std::conditional_t<sizeof(T) < 8, std::int64_t, Total>;
    std::array<Sum, kBlock> sums;
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t now = std::min(kBlock, count - begin);
      sums.fill(0);
      for (const std::byte* source : sources) {
        for (std::size_t i = 0; i < now; ++i) sums[i] += at<T>(source, begin + i);
      }
      for (std::size_t i = 0; i < now; ++i) put(out, begin + i, scale.of<T>(sums[i]));
    }
  });
}

}  // namespace farandole

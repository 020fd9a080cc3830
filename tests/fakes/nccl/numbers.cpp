#include "nccl/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "fake_nccl.h"

namespace farandole::fakes {
namespace {

/// A number as the processor has it.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value load(Stored bits) { return bits; }
  static Stored store(Value value) { return value; }
};

/// A short floating-point number: sign, `E` bits of exponent, `M` of mantissa. With `infinite` the
/// largest exponent is that of infinity and NaN; without, only all ones are NaN, as in E4M3.
template <typename Bits, int E, int M, bool infinite>
struct Short {
  using Stored = Bits;
  using Value = float;
  static constexpr int kBias = (1 << (E - 1)) - 1;
  static constexpr unsigned kTop = (1U << E) - 1;
  static constexpr unsigned kMantissa = (1U << M) - 1;
  static constexpr unsigned kLargest =
      infinite ? ((kTop - 1) << M) | kMantissa : (kTop << M) | (kMantissa - 1);
  static constexpr unsigned kNan = (kTop << M) | kMantissa;

  static Value magnitude(unsigned bits) {
    const unsigned exponent = bits >> M;
    const unsigned mantissa = bits & kMantissa;
    if (infinite && exponent == kTop) {
      return mantissa == 0 ? std::numeric_limits<float>::infinity()
                           : std::numeric_limits<float>::quiet_NaN();
    }
    if (!infinite && bits == kNan) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), 1 - kBias - M);
    return std::ldexp(static_cast<float>(mantissa + (1U << M)),
                      static_cast<int>(exponent) - kBias - M);
  }
  static Value load(Stored bits) {
    const float size = magnitude(bits & ((1U << (E + M)) - 1));
    return (bits >> (E + M)) != 0 ? -size : size;
  }
  static Stored store(Value value) {
    const unsigned sign = std::signbit(value) ? 1U << (E + M) : 0U;
    return static_cast<Stored>(sign | round(std::fabs(value)));
  }
  /// To the nearest, ties to even.
  static unsigned round(float size) {
    if (std::isnan(size)) return kNan;
    const float largest = magnitude(kLargest);
    int exponent = size == 0.0F || std::isinf(size) ? 1 - kBias : std::ilogb(size);
    exponent = std::max(exponent, 1 - kBias);
    // Bits of neighbouring numbers are neighbours: so a carry into the exponent is right by itself.
    const double steps = std::nearbyint(std::ldexp(static_cast<double>(size), M - exponent));
    if (std::isinf(size) || steps * std::ldexp(1.0, exponent - M) > largest) {
      return infinite ? kTop << M : kLargest;
    }
    return static_cast<unsigned>(steps) + (static_cast<unsigned>(exponent + kBias - 1) << M);
  }
};

template <typename Visit>
bool with_type(int type, Visit visit) {
  switch (type) {
    case ncclInt8:
      visit(Plain<std::int8_t>{});
      return true;
    case ncclUint8:
      visit(Plain<std::uint8_t>{});
      return true;
    case ncclInt32:
      visit(Plain<std::int32_t>{});
      return true;
    case ncclUint32:
      visit(Plain<std::uint32_t>{});
      return true;
    case ncclInt64:
      visit(Plain<std::int64_t>{});
      return true;
    case ncclUint64:
      visit(Plain<std::uint64_t>{});
      return true;
    case ncclFloat16:
      visit(Short<std::uint16_t, 5, 10, true>{});
      return true;
    case ncclFloat32:
      visit(Plain<float>{});
      return true;
    case ncclFloat64:
      visit(Plain<double>{});
      return true;
    case ncclBfloat16:
      visit(Short<std::uint16_t, 8, 7, true>{});
      return true;
    case ncclFloat8e4m3:
      visit(Short<std::uint8_t, 4, 3, false>{});
      return true;
    case ncclFloat8e5m2:
      visit(Short<std::uint8_t, 5, 2, true>{});
      return true;
    default:
      return false;
  }
}

/// Whole numbers wrap around.
template <typename T>
T apply(int op, T a, T b) {
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclMin) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ncclProd ? x * y : x + y);
  } else {
    return op == ncclProd ? a * b : a + b;
  }
}

template <typename Format, typename Change>
void change_each(std::byte* numbers, std::size_t count, Change change) {
  using Stored = typename Format::Stored;
  for (std::size_t i = 0; i < count; ++i) {
    Stored bits;
    std::memcpy(&bits, numbers + i * sizeof bits, sizeof bits);
    bits = Format::store(change(Format::load(bits), i));
    std::memcpy(numbers + i * sizeof bits, &bits, sizeof bits);
  }
}

template <typename Format>
typename Format::Value load_at(const std::byte* numbers, std::size_t index) {
  typename Format::Stored bits;
  std::memcpy(&bits, numbers + index * sizeof bits, sizeof bits);
  return Format::load(bits);
}

}  // namespace

std::size_t size_of(int type) noexcept {
  std::size_t size = 0;
  with_type(type, [&](auto format) { size = sizeof(typename decltype(format)::Stored); });
  return size;
}

void combine(int type, int op, std::byte* into, const std::byte* from, std::size_t count) {
  with_type(type, [&](auto format) {
    using Format = decltype(format);
    change_each<Format>(into, count, [&](auto value, std::size_t i) {
      return apply(op, value, load_at<Format>(from, i));
    });
  });
}

void divide(int type, std::byte* numbers, std::size_t count, int divisor) {
  with_type(type, [&](auto format) {
    using Value = typename decltype(format)::Value;
    change_each<decltype(format)>(numbers, count, [&](Value value, std::size_t) {
      return static_cast<Value>(value / static_cast<Value>(divisor));
    });
  });
}

void multiply(int type, std::byte* numbers, std::size_t count, const std::byte* factor) {
  with_type(type, [&](auto format) {
    using Format = decltype(format);
    const auto by = load_at<Format>(factor, 0);
    change_each<Format>(numbers, count,
                        [&](auto value, std::size_t) { return apply(ncclProd, value, by); });
  });
}

}  // namespace farandole::fakes

/// The semantics of the kernels once more, one element at a time and as plainly as possible:
/// shares no code with core/kernels. For tests that compare bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "random_numbers.h"
#include "types.h"

namespace farandole::reference {

using Bytes = std::vector<std::byte>;

/// Value of a binary floating number with `exponent_bits` and `mantissa_bits`, from its fields.
inline double decode(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const bool negative = ((bits >> (mantissa_bits + exponent_bits)) & 1u) != 0;
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

/// The nearest such number, ties to the even mantissa; NaN is the positive quiet one.
inline std::uint16_t encode(float value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1u << (mantissa_bits - 1)));
  const std::uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint32_t bits = infinity;
  if (!std::isinf(magnitude)) {
    int exponent = 0;
    if (magnitude != 0) exponent = std::ilogb(magnitude);
    exponent = std::max(exponent, 1 - bias);
    // In units of the last place; nearbyint rounds ties to even, and 2^53 leaves plenty of room.
    const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    // A carry out of the mantissa is the next exponent; subnormals have exponent field 0.
    const std::uint32_t whole = static_cast<std::uint32_t>(units);
    bits = whole < (1u << mantissa_bits)
               ? whole
               : (static_cast<std::uint32_t>(exponent + bias) << mantissa_bits) + whole -
                     (1u << mantissa_bits);
    bits = std::min(bits, infinity);
  }
  return static_cast<std::uint16_t>(sign | bits);
}

struct Half {
  std::uint16_t bits;
  explicit operator float() const { return static_cast<float>(decode(bits, 5, 10)); }
  static Half from(float value) { return {encode(value, 5, 10)}; }
};
struct Brain {
  std::uint16_t bits;
  explicit operator float() const { return static_cast<float>(decode(bits, 8, 7)); }
  static Brain from(float value) { return {encode(value, 8, 7)}; }
};
struct Truth {
  std::uint8_t byte;
};

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

/// The type that T is computed in.
template <typename T>
using Wide = std::conditional_t<kIsHalf<T>, float, T>;

/// One NaN for all.
template <typename W>
W canonical(W value) {
  if constexpr (std::is_floating_point_v<W>) {
    if (std::isnan(value)) return std::numeric_limits<W>::quiet_NaN();
  }
  return value;
}

template <typename T>
Wide<T> widened(T value) {
  if constexpr (kIsHalf<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}
template <typename T>
T rounded(Wide<T> value) {
  if constexpr (kIsHalf<T>) {
    return T::from(value);
  } else {
    return canonical(value);
  }
}

template <typename W>
W combined(W a, W b, ReduceOp op) {
  if constexpr (std::is_same_v<W, Truth>) {
    const bool either = op == ReduceOp::Sum || op == ReduceOp::Max;
    const bool x = a.byte != 0;
    const bool y = b.byte != 0;
    return {static_cast<std::uint8_t>(either ? x || y : x && y)};
  } else if constexpr (std::is_floating_point_v<W>) {
    if (op == ReduceOp::Sum) return canonical(a + b);
    if (op == ReduceOp::Product) return canonical(a * b);
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<W>::quiet_NaN();
    const bool a_is_less = a < b || (a == b && std::signbit(a) && !std::signbit(b));
    return (op == ReduceOp::Min) == a_is_less ? a : b;
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (op == ReduceOp::Sum) return static_cast<W>(x + y);
    if (op == ReduceOp::Product) return static_cast<W>(x * y);
    return (op == ReduceOp::Min) == (a < b) ? a : b;
  }
}

template <typename T>
T scaled(T value, double factor) {
  if constexpr (std::is_same_v<T, Truth>) {
    return value;
  } else if (factor == 1.0) {
    return value;
  } else if constexpr (kIsHalf<T>) {
    return T::from(static_cast<float>(value) * static_cast<float>(factor));
  } else if constexpr (std::is_floating_point_v<T>) {
    return canonical(static_cast<T>(value * static_cast<T>(factor)));
  } else {
    const double divisor = std::round(1.0 / factor);
    const bool averages = factor > 0 && factor < 1.0 && 1.0 / divisor == factor;
    if (averages && divisor < 0x1p31) {
      return static_cast<T>(static_cast<std::int64_t>(value) / static_cast<std::int64_t>(divisor));
    }
    const double product =
        averages ? static_cast<double>(value) / divisor : static_cast<double>(value) * factor;
    if (std::isnan(product)) return 0;
    if (product <= static_cast<double>(std::numeric_limits<T>::min()))
      return std::numeric_limits<T>::min();
    if (product >= static_cast<double>(std::numeric_limits<T>::max()))
      return std::numeric_limits<T>::max();
    return static_cast<T>(std::trunc(product));
  }
}

/// Calls `use.template operator()<T>()` with the type of `dtype`, which has a fraction.
template <typename Use>
auto with_float(DType dtype, Use use) {
  switch (dtype) {
    case DType::Float16:
      return use.template operator()<Half>();
    case DType::BFloat16:
      return use.template operator()<Brain>();
    case DType::Float32:
      return use.template operator()<float>();
    default:
      return use.template operator()<double>();
  }
}

/// With any type.
template <typename Use>
auto with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::UInt8:
      return use.template operator()<std::uint8_t>();
    case DType::Int8:
      return use.template operator()<std::int8_t>();
    case DType::UInt16:
      return use.template operator()<std::uint16_t>();
    case DType::Int16:
      return use.template operator()<std::int16_t>();
    case DType::Int32:
      return use.template operator()<std::int32_t>();
    case DType::Int64:
      return use.template operator()<std::int64_t>();
    case DType::Bool:
      return use.template operator()<Truth>();
    default:
      return with_float(dtype, use);
  }
}

template <typename T>
std::vector<T> values(const Bytes& bytes) {
  std::vector<T> result(bytes.size() / sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}
template <typename T>
Bytes bytes(const std::vector<T>& from) {
  Bytes result(from.size() * sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), from.data(), result.size());
  return result;
}

inline Bytes scale(const Bytes& in, DType dtype, double factor) {
  return with_type(dtype, [&]<typename T>() {
    auto elements = values<T>(in);
    for (T& element : elements) element = scaled(element, factor);
    return bytes(elements);
  });
}

/// What has been reduced is scaled before it is rounded.
template <typename T>
T finished(Wide<T> total, double factor) {
  if constexpr (kIsHalf<T>) {
    if (factor != 1.0) return T::from(total * static_cast<float>(factor));
  }
  return scaled(rounded<T>(total), factor);
}

/// Left to right, scaled, rounded once.
inline Bytes reduce(const std::vector<Bytes>& sources, DType dtype, ReduceOp op, double postscale) {
  if (sources.size() == 1) return scale(sources[0], dtype, postscale);
  return with_type(dtype, [&]<typename T>() {
    auto result = values<T>(sources[0]);
    std::vector<std::vector<T>> all;
    for (const Bytes& source : sources) all.push_back(values<T>(source));
    for (std::size_t i = 0; i < result.size(); ++i) {
      Wide<T> total = widened(all[0][i]);
      for (std::size_t k = 1; k < all.size(); ++k) total = combined(total, widened(all[k][i]), op);
      result[i] = finished<T>(total, postscale);
    }
    return bytes(result);
  });
}

/// Mostly ordinary numbers, some arbitrary bit patterns and every kind of special value.
inline Bytes mixed(DType dtype, std::size_t count, std::mt19937& seeds) {
  QuickRandom random((std::uint64_t{seeds()} << 32) | seeds());
  return with_type(dtype, [&]<typename T>() {
    std::vector<T> result(count);
    for (T& element : result) {
      const auto kind = random() % 8;
      const std::uint64_t pattern = random();
      if constexpr (std::is_same_v<T, Truth>) {
        element = {static_cast<std::uint8_t>(kind < 4 ? pattern & 1 : pattern & 0xff)};
      } else if constexpr (kIsHalf<T> || std::is_floating_point_v<T>) {
        if (kind < 5) {
          element = rounded<T>(static_cast<Wide<T>>(3 * normal_of(pattern)));
        } else if (kind == 5) {
          std::memcpy(&element, &pattern, sizeof(T));
        } else {
          using Limits = std::numeric_limits<Wide<T>>;
          const Wide<T> specials[] = {0,
                                      -Wide<T>(0),
                                      1,
                                      Limits::infinity(),
                                      -Limits::infinity(),
                                      Limits::quiet_NaN(),
                                      -Limits::quiet_NaN(),
                                      Limits::max(),
                                      Limits::lowest(),
                                      Limits::min(),
                                      Limits::denorm_min(),
                                      Wide<T>(65504),
                                      Wide<T>(65519.996),
                                      Wide<T>(65520),
                                      Wide<T>(0x1p-14),
                                      Wide<T>(0x1p-24),
                                      Wide<T>(-0x1.8p-25)};
          element = rounded<T>(specials[pattern % std::size(specials)]);
        }
      } else {
        const T specials[] = {0,
                              1,
                              7,
                              std::numeric_limits<T>::min(),
                              std::numeric_limits<T>::max(),
                              static_cast<T>(-1)};
        element = kind < 4   ? static_cast<T>(pattern % 100)
                  : kind < 6 ? static_cast<T>(pattern)
                             : specials[pattern % std::size(specials)];
      }
    }
    return bytes(result);
  });
}

}  // namespace farandole::reference

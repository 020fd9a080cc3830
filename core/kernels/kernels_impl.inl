/// The kernels. They are written once, over vectors of FARANDOLE_VECTOR_BYTES bytes; the file of
/// each level includes them (above 16 bytes after <immintrin.h>). Only the conversion of float16
/// differs between levels.
///
/// Vectors are the compiler's own (vector_size): arithmetic, comparison and ?: work lane by lane.
/// So all levels share this text, and only integer scaling depends on the auto-vectoriser.
/// Everything is in an unnamed namespace: see table.h for the reason.

namespace farandole::kernels {
namespace {

#define FARANDOLE_INLINE [[gnu::always_inline]] inline
// Says that the rounds of the following loop do not depend on each other. Clang would report an
// error where it does not use this.
#if defined(__clang__)
#define FARANDOLE_INDEPENDENT
#else
#define FARANDOLE_INDEPENDENT _Pragma("GCC ivdep")
#endif

inline constexpr int kVector = FARANDOLE_VECTOR_BYTES;

template <typename T, int Bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <typename T, int Bytes = kVector>
using Vector = typename VectorOf<T, Bytes>::type;

using F32 = Vector<float>;
using U32 = Vector<std::uint32_t>;
using I32 = Vector<std::int32_t>;

template <typename V>
FARANDOLE_INLINE V load(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <typename V>
FARANDOLE_INLINE void store(std::byte* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// An element type E has: Packed, a vector as it lies in memory; Vec, the same values as they are
// computed with; the four folds; and for floating types
//   canonical  one NaN for all,
//   rounded    to the precision of E (the value of unpack(pack(v))), NaN stays NaN,
//   scaled     times a factor, canonical.

/// What all floating types share. T is the type of the arithmetic.
template <typename T, typename Bits, Bits kQuietNan, Bits kSignBit>
struct Floating {
  using Vec = Vector<T>;
  using BitVec = Vector<Bits>;
  static constexpr std::size_t kSize = sizeof(T);  ///< of one element in memory
  static constexpr int kUnroll = 4;  ///< vectors in flight per source, to hide the adds' latency
  static constexpr bool kScalesInRegister = true;

  FARANDOLE_INLINE static Vec sum(Vec a, Vec b) { return a + b; }
  FARANDOLE_INLINE static Vec product(Vec a, Vec b) { return a * b; }
  /// a < b ? a : b keeps b if one is NaN and if both are zero; the two orders together see both.
  /// Of two zeros `or` keeps the minus sign; of a NaN and anything `or` makes some NaN.
  FARANDOLE_INLINE static Vec min(Vec a, Vec b) {
    return (Vec)((BitVec)(a < b ? a : b) | (BitVec)(b < a ? b : a));
  }
  FARANDOLE_INLINE static Vec max(Vec a, Vec b) {
    const BitVec sign = BitVec{} + kSignBit;
    const Vec mirrored = min((Vec)((BitVec)a ^ sign), (Vec)((BitVec)b ^ sign));
    return (Vec)((BitVec)mirrored ^ sign);
  }
  /// One NaN for all: which operand's payload survives an addition is the compiler's choice.
  FARANDOLE_INLINE static Vec canonical(Vec v) { return v == v ? v : (Vec)(BitVec{} + kQuietNan); }
  FARANDOLE_INLINE static Vec scaled(Vec v, double factor) {
    return canonical(v * static_cast<T>(factor));
  }
};

using InFloat32 = Floating<float, std::uint32_t, 0x7fc00000u, 0x80000000u>;
using InFloat64 = Floating<double, std::uint64_t, 0x7ff8000000000000u, 0x8000000000000000u>;

struct Float32 : InFloat32 {
  using Packed = Vec;
  FARANDOLE_INLINE static Vec unpack(Packed p) { return p; }
  FARANDOLE_INLINE static Packed pack(Vec v) { return v; }
  FARANDOLE_INLINE static Vec rounded(Vec v) { return v; }
};
struct Float64 : InFloat64 {
  using Packed = Vec;
  FARANDOLE_INLINE static Vec unpack(Packed p) { return p; }
  FARANDOLE_INLINE static Packed pack(Vec v) { return v; }
  FARANDOLE_INLINE static Vec rounded(Vec v) { return v; }
};
/// Two half types per 32-bit lane, widened into two vectors without any shuffle: `even` has the
/// lower half of every lane, `odd` the upper.
struct Pair {
  F32 even;
  F32 odd;
};
struct InPairs {
  using Vec = Pair;
  using Packed = U32;
  static constexpr std::size_t kSize = 2;
  static constexpr int kUnroll = 2;
  static constexpr bool kScalesInRegister = true;

  FARANDOLE_INLINE static Vec sum(Vec a, Vec b) { return {a.even + b.even, a.odd + b.odd}; }
  FARANDOLE_INLINE static Vec product(Vec a, Vec b) { return {a.even * b.even, a.odd * b.odd}; }
  FARANDOLE_INLINE static Vec min(Vec a, Vec b) {
    return {InFloat32::min(a.even, b.even), InFloat32::min(a.odd, b.odd)};
  }
  FARANDOLE_INLINE static Vec max(Vec a, Vec b) {
    return {InFloat32::max(a.even, b.even), InFloat32::max(a.odd, b.odd)};
  }
  FARANDOLE_INLINE static Vec canonical(Vec v) {
    return {InFloat32::canonical(v.even), InFloat32::canonical(v.odd)};
  }
  FARANDOLE_INLINE static Vec scaled(Vec v, double factor) {
    return {InFloat32::scaled(v.even, factor), InFloat32::scaled(v.odd, factor)};
  }
};

struct BFloat16 : InPairs {
  FARANDOLE_INLINE static Vec unpack(Packed p) { return {(F32)(p << 16), (F32)(p & 0xffff0000u)}; }
  /// Only for canonical values: their one NaN survives the rounding.
  FARANDOLE_INLINE static Packed pack(Vec v) {
    return (nearest(v.even) >> 16) | (nearest(v.odd) & 0xffff0000u);
  }
  FARANDOLE_INLINE static Vec rounded(Vec v) {
    v = canonical(v);
    return {(F32)(nearest(v.even) & 0xffff0000u), (F32)(nearest(v.odd) & 0xffff0000u)};
  }

 private:
  /// Rounds to even in the upper half; a carry out of the mantissa is the next exponent.
  FARANDOLE_INLINE static U32 nearest(F32 v) {
    const U32 bits = (U32)v;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
};

#if FARANDOLE_VECTOR_BYTES > 16

/// As many 16-bit values as F32 has lanes: the operand of the processor's conversion.
struct Float16 : InFloat32 {
  using Packed = Vector<std::uint16_t, kVector / 2>;
  static constexpr std::size_t kSize = 2;
#if FARANDOLE_VECTOR_BYTES == 64
  // The forms with a mask, of all lanes: GCC 12 warns that the plain forms use uninitialised
  // memory.
  FARANDOLE_INLINE static Vec unpack(Packed p) {
    return (Vec)_mm512_maskz_cvtph_ps(__mmask16{0xffff}, (__m256i)p);
  }
  FARANDOLE_INLINE static Packed pack(Vec v) {
    return (Packed)_mm512_maskz_cvtps_ph(__mmask16{0xffff}, (__m512)v,
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#else
  FARANDOLE_INLINE static Vec unpack(Packed p) { return (Vec)_mm256_cvtph_ps((__m128i)p); }
  FARANDOLE_INLINE static Packed pack(Vec v) {
    return (Packed)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#endif
  FARANDOLE_INLINE static Vec rounded(Vec v) { return unpack(pack(v)); }
};

#else

/// Integer code, for processors without an instruction.
struct Float16 : InPairs {
  FARANDOLE_INLINE static Vec unpack(Packed p) { return {widened(p & 0xffffu), widened(p >> 16)}; }
  FARANDOLE_INLINE static Packed pack(Vec v) { return narrowed(v.even) | (narrowed(v.odd) << 16); }
  FARANDOLE_INLINE static Vec rounded(Vec v) { return unpack(pack(v)); }

 private:
  FARANDOLE_INLINE static F32 widened(U32 half) {
    const U32 magnitude = (half & 0x7fffu) << 13;
    const U32 exponent = magnitude & 0x0f800000u;
    U32 normal = magnitude + (112u << 23);  // exponent bias 127 instead of 15
    normal += (U32)(exponent == 0x0f800000u) & (112u << 23);
    // Subnormal: 1.m * 2^-14 minus 1.0 * 2^-14 is exact and never touches a float32 subnormal.
    const F32 subnormal = (F32)(magnitude + (113u << 23)) - 0x1p-14f;
    const U32 bits = exponent == 0u ? (U32)subnormal : normal;
    return (F32)(bits | ((half & 0x8000u) << 16));
  }
  FARANDOLE_INLINE static U32 narrowed(F32 value) {
    const U32 sign = (U32)value & 0x80000000u;
    const U32 magnitude = (U32)value ^ sign;
    const I32 order = (I32)magnitude;  // non-negative, so it may be compared as signed
    // Normal: rebias, then round to nearest even; a carry out of the mantissa is the next exponent.
    const U32 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal: float32 addition to 0.5 rounds at 2^-24, the last place of a float16 subnormal.
    const U32 subnormal = (U32)((F32)magnitude + 0.5f) - 0x3f000000u;
    U32 half = order < (113 << 23) ? subnormal : normal;
    half = order >= (143 << 23) ? U32{} + 0x7c00u : half;
    half = order > 0x7f800000 ? U32{} + 0x7e00u : half;
    return half | (sign >> 16);
  }
};

#endif

template <typename T, typename Unsigned>
struct Integer {
  using Vec = Vector<T>;
  using BitVec = Vector<Unsigned>;  // wraps, where a signed T would overflow
  using Packed = Vec;
  static constexpr std::size_t kSize = sizeof(T);
  static constexpr int kUnroll = 4;
  static constexpr bool kScalesInRegister = false;

  FARANDOLE_INLINE static Vec sum(Vec a, Vec b) { return (Vec)((BitVec)a + (BitVec)b); }
  FARANDOLE_INLINE static Vec product(Vec a, Vec b) { return (Vec)((BitVec)a * (BitVec)b); }
  FARANDOLE_INLINE static Vec min(Vec a, Vec b) { return a < b ? a : b; }
  FARANDOLE_INLINE static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  FARANDOLE_INLINE static Vec canonical(Vec v) { return v; }
  FARANDOLE_INLINE static Vec unpack(Packed p) { return p; }
  FARANDOLE_INLINE static Packed pack(Vec v) { return v; }

  struct [[gnu::packed, gnu::may_alias]] Unaligned {
    T value;
  };
  /// An int64 beyond 2^53 loses its last bits on the way through float64, where the specification
  /// multiplies. An average is a division, and needs no float64.
  static void scale(std::byte* out, const std::byte* in, std::size_t count, double factor) {
    auto* to = reinterpret_cast<Unaligned*>(out);
    const auto* from = reinterpret_cast<const Unaligned*>(in);
    if (const double whole = whole_divisor(factor); whole != 0.0) {
      FARANDOLE_INDEPENDENT
      for (std::size_t i = 0; i < count; ++i) {
        if constexpr (sizeof(T) < 8) {
          to[i].value = truncated(static_cast<double>(from[i].value) / whole);
        } else {
          to[i].value = from[i].value / static_cast<T>(whole);
        }
      }
      return;
    }
    FARANDOLE_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      to[i].value = truncated(static_cast<double>(from[i].value) * factor);
    }
  }
  /// n if the factor is that of an average over n values, 1 / n rounded; else 0. The product with
  /// it may lie just below the whole number that the quotient is: 49 * (1 / 49.0) < 1.
  FARANDOLE_INLINE static double whole_divisor(double factor) {
    if (!(factor > 0x1p-31 && factor < 1.0)) return 0.0;
    const double whole = static_cast<double>(static_cast<std::int64_t>(1.0 / factor + 0.5));
    return 1.0 / whole == factor ? whole : 0.0;
  }
  FARANDOLE_INLINE static T truncated(double v) {
    constexpr bool kSigned = T(-1) < T(0);
    constexpr int kBits = static_cast<int>(sizeof(T)) * 8 - (kSigned ? 1 : 0);
    constexpr T kHighest = static_cast<T>(static_cast<Unsigned>(~Unsigned{0}) >> (kSigned ? 1 : 0));
    constexpr T kLowest = kSigned ? static_cast<T>(-kHighest - 1) : T{0};
    if constexpr (sizeof(T) < 8) {  // every limit is a float64
      v = v == v ? v : 0.0;
      v = v < static_cast<double>(kLowest) ? static_cast<double>(kLowest) : v;
      v = v > static_cast<double>(kHighest) ? static_cast<double>(kHighest) : v;
      return static_cast<T>(static_cast<std::int32_t>(v));
    } else {
      constexpr double kBeyond = 0x1p63;
      static_assert(kBits == 63, "no unsigned 64-bit type yet");
      if (v != v) return 0;
      if (v >= kBeyond) return kHighest;
      if (v < -kBeyond) return kLowest;
      return static_cast<T>(v);
    }
  }
};

/// Any byte but 0 is true; folding yields 0 or 1. Maximum is or, minimum is and.
struct Boolean {
  using Vec = Vector<std::uint8_t>;
  using Packed = Vec;
  static constexpr std::size_t kSize = 1;
  static constexpr int kUnroll = 4;
  static constexpr bool kScalesInRegister = false;

  FARANDOLE_INLINE static Vec sum(Vec a, Vec b) { return a | b; }
  FARANDOLE_INLINE static Vec product(Vec a, Vec b) { return a & b; }
  FARANDOLE_INLINE static Vec min(Vec a, Vec b) { return a & b; }
  FARANDOLE_INLINE static Vec max(Vec a, Vec b) { return a | b; }
  FARANDOLE_INLINE static Vec canonical(Vec v) { return v; }
  FARANDOLE_INLINE static Vec unpack(Packed p) { return (Vec)(p != 0) & 1; }
  FARANDOLE_INLINE static Packed pack(Vec v) { return v; }
  /// Never called: the dispatcher scales no Bool, as a truth value has no multiple.
  static void scale(std::byte*, const std::byte*, std::size_t, double) {}
};

struct Sum {
  template <typename E>
  FARANDOLE_INLINE static typename E::Vec apply(typename E::Vec a, typename E::Vec b) {
    return E::sum(a, b);
  }
};
struct Product {
  template <typename E>
  FARANDOLE_INLINE static typename E::Vec apply(typename E::Vec a, typename E::Vec b) {
    return E::product(a, b);
  }
};
struct Min {
  template <typename E>
  FARANDOLE_INLINE static typename E::Vec apply(typename E::Vec a, typename E::Vec b) {
    return E::min(a, b);
  }
};
struct Max {
  template <typename E>
  FARANDOLE_INLINE static typename E::Vec apply(typename E::Vec a, typename E::Vec b) {
    return E::max(a, b);
  }
};

template <typename E, bool kScaled>
FARANDOLE_INLINE typename E::Packed finished(typename E::Vec v, [[maybe_unused]] double factor) {
  if constexpr (kScaled) return E::pack(E::scaled(v, factor));
  return E::pack(E::canonical(v));
}

/// Folds kCount vectors at byte `at` of every source. All sources are read before anything is
/// written, so a destination may be a source.
template <typename E, typename Op, bool kScaled, int kCount>
FARANDOLE_INLINE void fold_at(std::byte* out, std::byte* also_out, const std::byte* const* sources,
                              std::size_t n, std::size_t at, double factor) {
  constexpr std::size_t kStep = sizeof(typename E::Packed);
  typename E::Vec total[kCount];
#pragma GCC unroll 8
  for (int u = 0; u < kCount; ++u) {
    total[u] = E::unpack(load<typename E::Packed>(sources[0] + at + u * kStep));
  }
  for (std::size_t k = 1; k < n; ++k) {
    const std::byte* source = sources[k] + at;
#pragma GCC unroll 8
    for (int u = 0; u < kCount; ++u) {
      total[u] =
          Op::template apply<E>(total[u], E::unpack(load<typename E::Packed>(source + u * kStep)));
    }
  }
#pragma GCC unroll 8
  for (int u = 0; u < kCount; ++u) {
    const typename E::Packed packed = finished<E, kScaled>(total[u], factor);
    store(out + at + u * kStep, packed);
    if (also_out != nullptr) store(also_out + at + u * kStep, packed);
  }
}

/// Bytes `at` … `end`. `n` is a constant where this is called for two sources.
template <typename E, typename Op, bool kScaled>
FARANDOLE_INLINE void fold_loop(std::byte* out, std::byte* also_out,
                                const std::byte* const* sources, std::size_t n, std::size_t at,
                                std::size_t end, double factor) {
  constexpr std::size_t kStep = sizeof(typename E::Packed);
  for (; at + E::kUnroll * kStep <= end; at += E::kUnroll * kStep) {
    fold_at<E, Op, kScaled, E::kUnroll>(out, also_out, sources, n, at, factor);
  }
  for (; at + kStep <= end; at += kStep) {
    fold_at<E, Op, kScaled, 1>(out, also_out, sources, n, at, factor);
  }
  if (at == end) return;
  // The rest goes through a whole vector on the stack, so that the same instructions compute it.
  const std::size_t rest = end - at;
  typename E::Packed packed{};
  __builtin_memcpy(&packed, sources[0] + at, rest);
  typename E::Vec total = E::unpack(packed);
  for (std::size_t k = 1; k < n; ++k) {
    packed = typename E::Packed{};
    __builtin_memcpy(&packed, sources[k] + at, rest);
    total = Op::template apply<E>(total, E::unpack(packed));
  }
  packed = finished<E, kScaled>(total, factor);
  __builtin_memcpy(out + at, &packed, rest);
  if (also_out != nullptr) __builtin_memcpy(also_out + at, &packed, rest);
}

template <typename E, typename Op, bool kScaled>
void fold_range(std::byte* out, std::byte* also_out, const std::byte* const* sources, std::size_t n,
                std::size_t begin, std::size_t end, double factor) {
  if (n == 2) {
    const std::byte* const both[2] = {sources[0], sources[1]};
    fold_loop<E, Op, kScaled>(out, also_out, both, 2, begin, end, factor);
  } else {
    fold_loop<E, Op, kScaled>(out, also_out, sources, n, begin, end, factor);
  }
}

template <typename E>
void scale_floats(std::byte* out, const std::byte* in, std::size_t count, double factor) {
  constexpr std::size_t kStep = sizeof(typename E::Packed);
  const std::size_t bytes = count * E::kSize;
  std::size_t at = 0;
#pragma GCC unroll 4
  for (; at + kStep <= bytes; at += kStep) {
    store(out + at, E::pack(E::scaled(E::unpack(load<typename E::Packed>(in + at)), factor)));
  }
  if (at == bytes) return;
  typename E::Packed packed{};
  __builtin_memcpy(&packed, in + at, bytes - at);
  packed = E::pack(E::scaled(E::unpack(packed), factor));
  __builtin_memcpy(out + at, &packed, bytes - at);
}

template <typename E>
void scale(std::byte* out, const std::byte* in, std::size_t count, double factor) {
  if constexpr (E::kScalesInRegister) {
    scale_floats<E>(out, in, count, factor);
  } else {
    E::scale(out, in, count, factor);
  }
}

/// Integers are scaled block by block, while the block that was just folded is in the first-level
/// cache.
template <typename E, typename Op>
void fold_then_scale(std::byte* out, std::byte* also_out, const std::byte* const* sources,
                     std::size_t n, std::size_t count, double factor) {
  constexpr std::size_t kBlockBytes = 4096;
  const std::size_t bytes = count * E::kSize;
  for (std::size_t begin = 0; begin < bytes; begin += kBlockBytes) {
    const std::size_t end = begin + kBlockBytes < bytes ? begin + kBlockBytes : bytes;
    fold_range<E, Op, false>(out, nullptr, sources, n, begin, end, 1.0);
    E::scale(out + begin, out + begin, (end - begin) / E::kSize, factor);
    if (also_out != nullptr) __builtin_memcpy(also_out + begin, out + begin, end - begin);
  }
}

template <typename E, typename Op>
void reduce(std::byte* out, std::byte* also_out, const std::byte* const* sources, std::size_t n,
            std::size_t count, double postscale) {
  const std::size_t bytes = count * E::kSize;
  if (postscale == 1.0) {
    fold_range<E, Op, false>(out, also_out, sources, n, 0, bytes, 1.0);
  } else if constexpr (E::kScalesInRegister) {
    fold_range<E, Op, true>(out, also_out, sources, n, 0, bytes, postscale);
  } else {
    fold_then_scale<E, Op>(out, also_out, sources, n, count, postscale);
  }
}

template <typename E>
constexpr void enter(Table& table, DType dtype) {
  const auto row = static_cast<std::size_t>(dtype);
  table.scale[row] = &scale<E>;
  table.reduce[row][kSum] = &reduce<E, Sum>;
  table.reduce[row][kProduct] = &reduce<E, Product>;
  table.reduce[row][kMin] = &reduce<E, Min>;
  table.reduce[row][kMax] = &reduce<E, Max>;
}

#include "kernels/adasum_impl.inl"

constexpr Table make_table() {
  Table table{};
  enter<Integer<std::uint8_t, std::uint8_t>>(table, DType::UInt8);
  enter<Integer<std::int8_t, std::uint8_t>>(table, DType::Int8);
  enter<Integer<std::uint16_t, std::uint16_t>>(table, DType::UInt16);
  enter<Integer<std::int16_t, std::uint16_t>>(table, DType::Int16);
  enter<Integer<std::int32_t, std::uint32_t>>(table, DType::Int32);
  enter<Integer<std::int64_t, std::uint64_t>>(table, DType::Int64);
  enter<Float16>(table, DType::Float16);
  enter<BFloat16>(table, DType::BFloat16);
  enter<Float32>(table, DType::Float32);
  enter<Float64>(table, DType::Float64);
  enter<Boolean>(table, DType::Bool);
  enter_adasum<Float16>(table, DType::Float16);
  enter_adasum<BFloat16>(table, DType::BFloat16);
  enter_adasum<Float32>(table, DType::Float32);
  enter_adasum<Float64>(table, DType::Float64);
  return table;
}

constexpr Table kTable = make_table();

#undef FARANDOLE_INLINE

}  // namespace
}  // namespace farandole::kernels

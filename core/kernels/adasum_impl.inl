/// The kernels of Adasum, for the level that includes this (from kernels_impl.inl).
///
/// Lanes are explicit, so that every vector width adds in the same order. Half types pass through a
/// tile of float32 in the first-level cache; conversions and products of float32 are exact in
/// float64.

using F64 = Vector<double>;
using NarrowF32 = Vector<float, kVector / 2>;  ///< as many as F64 has

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kPerVector = kVector / 8;
inline constexpr std::size_t kLaneVectors = kLanes / kPerVector;
/// Vectors of lanes that one pass adds up. Their three sums have to fit into the registers.
inline constexpr std::size_t kTogether = kLaneVectors < 4 ? kLaneVectors : 4;
inline constexpr std::size_t kTile = 512;

/// T is float or double; the address has any alignment.
template <typename T>
FARANDOLE_INLINE F64 load_f64(const std::byte* from) {
  if constexpr (sizeof(T) == 4) return __builtin_convertvector(load<NarrowF32>(from), F64);
  return load<F64>(from);
}
template <typename T>
FARANDOLE_INLINE void store_f64(std::byte* to, F64 v) {
  if constexpr (sizeof(T) == 4) {
    store(to, __builtin_convertvector(v, NarrowF32));
  } else {
    store(to, v);
  }
}

/// Alternately from two vectors, and back.
template <int... I>
struct Places {
  template <typename V>
  FARANDOLE_INLINE static V shuffle(V one, V other) {
    return __builtin_shufflevector(one, other, I...);
  }
};
#if FARANDOLE_VECTOR_BYTES == 16
using MergeLow = Places<0, 4, 1, 5>;
using MergeHigh = Places<2, 6, 3, 7>;
using TakeEven = Places<0, 2, 4, 6>;
using TakeOdd = Places<1, 3, 5, 7>;
#elif FARANDOLE_VECTOR_BYTES == 32
using MergeLow = Places<0, 8, 1, 9, 2, 10, 3, 11>;
using MergeHigh = Places<4, 12, 5, 13, 6, 14, 7, 15>;
using TakeEven = Places<0, 2, 4, 6, 8, 10, 12, 14>;
using TakeOdd = Places<1, 3, 5, 7, 9, 11, 13, 15>;
#else
using MergeLow = Places<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>;
using MergeHigh = Places<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>;
using TakeEven = Places<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>;
using TakeOdd = Places<1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31>;
#endif

FARANDOLE_INLINE void put_in_order(std::byte* to, F32 v) { store(to, v); }
FARANDOLE_INLINE void put_in_order(std::byte* to, Pair v) {
  store(to, MergeLow::shuffle(v.even, v.odd));
  store(to + kVector, MergeHigh::shuffle(v.even, v.odd));
}
FARANDOLE_INLINE void get_in_order(const std::byte* from, F32& v) { v = load<F32>(from); }
FARANDOLE_INLINE void get_in_order(const std::byte* from, Pair& v) {
  const F32 low = load<F32>(from);
  const F32 high = load<F32>(from + kVector);
  v = {TakeEven::shuffle(low, high), TakeOdd::shuffle(low, high)};
}

/// Half types as float32; `out` has room for a whole tile. Beyond `count` comes something up to the
/// end of a vector, never a part of another element.
template <typename E>
FARANDOLE_INLINE void widen(std::byte* out, const std::byte* from, std::size_t count) {
  constexpr std::size_t kStep = sizeof(typename E::Packed);
  const std::size_t bytes = count * 2;
  std::size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) {
    put_in_order(out + at * 2, E::unpack(load<typename E::Packed>(from + at)));
  }
  if (at == bytes) return;
  typename E::Packed packed{};
  __builtin_memcpy(&packed, from + at, bytes - at);
  put_in_order(out + at * 2, E::unpack(packed));
}
template <typename E>
FARANDOLE_INLINE void narrow(std::byte* to, const std::byte* in, std::size_t count) {
  constexpr std::size_t kStep = sizeof(typename E::Packed);
  const std::size_t bytes = count * 2;
  for (std::size_t at = 0; at < bytes; at += kStep) {
    typename E::Vec v;
    get_in_order(in + at * 2, v);
    const typename E::Packed packed = E::pack(v);
    __builtin_memcpy(to + at, &packed, bytes - at < kStep ? bytes - at : kStep);
  }
}

/// The sums over one block, by lane.
struct LaneSums {
  F64 ab[kLaneVectors]{};
  F64 aa[kLaneVectors]{};
  F64 bb[kLaneVectors]{};
};

/// `count` is a multiple of kLanes. T may have any alignment.
template <typename T>
FARANDOLE_INLINE void add_products(LaneSums& sums, const std::byte* a, const std::byte* b,
                                   std::size_t count, double scale_a, double scale_b) {
  const F64 by_a = F64{} + scale_a;
  const F64 by_b = F64{} + scale_b;
  for (std::size_t first = 0; first < kLaneVectors; first += kTogether) {
    F64 ab[kTogether];
    F64 aa[kTogether];
    F64 bb[kTogether];
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kTogether; ++k) {
      ab[k] = sums.ab[first + k];
      aa[k] = sums.aa[first + k];
      bb[k] = sums.bb[first + k];
    }
    for (std::size_t i = 0; i < count; i += kLanes) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kTogether; ++k) {
        const std::size_t at = (i + (first + k) * kPerVector) * sizeof(T);
        F64 x = load_f64<T>(a + at);
        F64 y = load_f64<T>(b + at);
        if constexpr (sizeof(T) == 8) {
          x *= by_a;
          y *= by_b;
        }
        ab[k] += x * y;
        aa[k] += x * x;
        bb[k] += y * y;
      }
    }
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kTogether; ++k) {
      sums.ab[first + k] = ab[k];
      sums.aa[first + k] = aa[k];
      sums.bb[first + k] = bb[k];
    }
  }
}

/// Any number of elements of float32 or float64; only the last call of a block may be uneven.
template <typename T>
FARANDOLE_INLINE void add_all_products(LaneSums& sums, const std::byte* a, const std::byte* b,
                                       std::size_t count, double scale_a, double scale_b) {
  const std::size_t whole = count / kLanes * kLanes;
  add_products<T>(sums, a, b, whole, scale_a, scale_b);
  if (whole == count) return;
  std::byte rest_a[kLanes * sizeof(T)]{};  // zeros add nothing
  std::byte rest_b[kLanes * sizeof(T)]{};
  __builtin_memcpy(rest_a, a + whole * sizeof(T), (count - whole) * sizeof(T));
  __builtin_memcpy(rest_b, b + whole * sizeof(T), (count - whole) * sizeof(T));
  add_products<T>(sums, rest_a, rest_b, kLanes, scale_a, scale_b);
}

FARANDOLE_INLINE double sum_of_lanes(const F64* lanes) {
  double values[kLanes];
  __builtin_memcpy(values, lanes, sizeof values);
  for (std::size_t apart = kLanes / 2; apart > 0; apart /= 2) {
    for (std::size_t i = 0; i < apart; ++i) values[i] += values[i + apart];
  }
  return values[0];
}

template <typename E>
void adasum_products(double* ab, double* aa, double* bb, const std::byte* a, const std::byte* b,
                     std::size_t count, double scale_a, double scale_b) {
  LaneSums sums;
  if constexpr (E::kSize == 2) {
    alignas(64) std::byte wide_a[kTile * 4];
    alignas(64) std::byte wide_b[kTile * 4];
    for (std::size_t at = 0; at < count; at += kTile) {
      const std::size_t now = count - at < kTile ? count - at : kTile;
      widen<E>(wide_a, a + at * 2, now);
      widen<E>(wide_b, b + at * 2, now);
      add_all_products<float>(sums, wide_a, wide_b, now, 1.0, 1.0);
    }
  } else if constexpr (E::kSize == 4) {
    add_all_products<float>(sums, a, b, count, 1.0, 1.0);
  } else {
    add_all_products<double>(sums, a, b, count, scale_a, scale_b);
  }
  *ab = sum_of_lanes(sums.ab);
  *aa = sum_of_lanes(sums.aa);
  *bb = sum_of_lanes(sums.bb);
}

template <typename T>
FARANDOLE_INLINE void combine_at(std::byte* out, const std::byte* a, const std::byte* b,
                                 F64 weight_a, F64 weight_b) {
  const F64 v = weight_a * load_f64<T>(a) + weight_b * load_f64<T>(b);
  store_f64<T>(out, InFloat64::canonical(v));
}

template <typename T>
FARANDOLE_INLINE void combine_all(std::byte* out, const std::byte* a, const std::byte* b,
                                  std::size_t count, double weight_a, double weight_b) {
  constexpr std::size_t kStep = kPerVector * sizeof(T);
  const F64 by_a = F64{} + weight_a;
  const F64 by_b = F64{} + weight_b;
  const std::size_t bytes = count * sizeof(T);
  std::size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) combine_at<T>(out + at, a + at, b + at, by_a, by_b);
  if (at == bytes) return;
  std::byte rest_a[kStep]{};
  std::byte rest_b[kStep]{};
  __builtin_memcpy(rest_a, a + at, bytes - at);
  __builtin_memcpy(rest_b, b + at, bytes - at);
  combine_at<T>(rest_a, rest_a, rest_b, by_a, by_b);
  __builtin_memcpy(out + at, rest_a, bytes - at);
}

template <typename E>
void adasum_combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                    double weight_a, double weight_b) {
  if constexpr (E::kSize == 2) {
    alignas(64) std::byte wide_a[kTile * 4];
    alignas(64) std::byte wide_b[kTile * 4];
    for (std::size_t at = 0; at < count; at += kTile) {
      const std::size_t now = count - at < kTile ? count - at : kTile;
      widen<E>(wide_a, a + at * 2, now);
      widen<E>(wide_b, b + at * 2, now);
      combine_all<float>(wide_a, wide_a, wide_b, now, weight_a, weight_b);
      narrow<E>(out + at * 2, wide_a, now);
    }
  } else if constexpr (E::kSize == 4) {
    combine_all<float>(out, a, b, count, weight_a, weight_b);
  } else {
    combine_all<double>(out, a, b, count, weight_a, weight_b);
  }
}

template <typename E>
constexpr void enter_adasum(Table& table, DType dtype) {
  const auto row = static_cast<std::size_t>(dtype);
  table.adasum_products[row] = &adasum_products<E>;
  table.adasum_combine[row] = &adasum_combine<E>;
}

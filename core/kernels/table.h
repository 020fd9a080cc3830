/// Private to kernels/: the functions of one level, for the dispatcher.
///
/// The files of a level are compiled with instruction sets that the processor may lack. So all
/// their definitions have internal linkage, and they call no inline function from outside: the
/// linker keeps one copy of such a function for the whole program, and might keep the copy of a
/// level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace farandole {
enum class Level : std::uint8_t;
}

namespace farandole::kernels {

/// out = factor * in; never called for a plain copy.
using ScaleFn = void (*)(std::byte* out, const std::byte* in, std::size_t count, double factor);
/// out = also_out = postscale * fold(sources); `sources` has n >= 2 entries; also_out may be null.
using ReduceFn = void (*)(std::byte* out, std::byte* also_out, const std::byte* const* sources,
                          std::size_t n, std::size_t count, double postscale);

/// The three dot products of a block; Adasum's types only, as the next.
using AdasumProductsFn = void (*)(double* ab, double* aa, double* bb, const std::byte* a,
                                  const std::byte* b, std::size_t count, double scale_a,
                                  double scale_b);
/// out = weight_a * a + weight_b * b
using AdasumCombineFn = void (*)(std::byte* out, const std::byte* a, const std::byte* b,
                                 std::size_t count, double weight_a, double weight_b);

enum Fold : std::size_t { kSum = 0, kProduct = 1, kMin = 2, kMax = 3, kFolds = 4 };

/// By DType (and Fold). Immutable.
struct Table {
  ScaleFn scale[kReducedDTypes];
  ReduceFn reduce[kReducedDTypes][kFolds];
  AdasumProductsFn adasum_products[kReducedDTypes];
  AdasumCombineFn adasum_combine[kReducedDTypes];
};

/// Null where this build does not have the level.
const Table* baseline_table() noexcept;
const Table* avx2_table() noexcept;
const Table* avx512_table() noexcept;
/// Of a level that is supported.
const Table& table_of(Level level) noexcept;

}  // namespace farandole::kernels

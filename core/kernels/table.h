/// Private to kernels/: what one level's translation unit offers to the dispatcher.
///
/// The files of a level are compiled with instruction sets that the processor may lack. So
/// everything they define has internal linkage, and they call no inline function from outside: the
/// linker keeps one copy of such a function for the whole program and might keep theirs.
#pragma once

#include <cstddef>

#include "types.h"

namespace rueda::kernels {

/// out = factor * in; never called for a plain copy.
using ScaleFn = void (*)(std::byte* out, const std::byte* in, std::size_t count, double factor);
/// out = also_out = postscale * fold(sources); `sources` has n >= 2 entries; also_out may be null.
using ReduceFn = void (*)(std::byte* out, std::byte* also_out, const std::byte* const* sources,
                          std::size_t n, std::size_t count, double postscale);

enum Fold : std::size_t { kSum = 0, kProduct = 1, kMin = 2, kMax = 3, kFolds = 4 };

/// By DType (and Fold). Immutable.
struct Table {
  ScaleFn scale[kDTypes];
  ReduceFn reduce[kDTypes][kFolds];
};

/// Null where this build does not have the level.
const Table* baseline_table() noexcept;
const Table* avx2_table() noexcept;
const Table* avx512_table() noexcept;

}  // namespace rueda::kernels

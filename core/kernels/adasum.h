/// The arithmetic of Adasum on raw memory: three dot products of two vectors, and the combination
/// that they decide.
/// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
///
/// Bits and memory as in kernels.h; types are Float16, BFloat16, Float32 and Float64. Everything is
/// computed in float64: the ratio of a large and a tiny vector of float32 is beyond float32.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"
#include "types.h"

namespace farandole {

/// Dot products are sums over blocks of this many elements, counted from the vector's start.
inline constexpr std::size_t kAdasumBlock = 4096;

/// <a, b>, <a, a> and <b, b>.
struct AdasumProducts {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

/// Powers of two by which Float64 vectors are multiplied, so that no square overflows.
struct AdasumScales {
  double a = 1;
  double b = 1;
  friend bool operator==(const AdasumScales&, const AdasumScales&) = default;
};

/// The result is weights.a * a + weights.b * b.
struct AdasumWeights {
  double a = 1;
  double b = 1;
};

/// The products of one block, `count` <= kAdasumBlock. Element i is added up in lane i % 16; then
/// lanes at distances 8, 4, 2 and 1 are added.
[[nodiscard]] AdasumProducts adasum_products(const std::byte* a, const std::byte* b,
                                             std::size_t count, DType dtype,
                                             const AdasumScales& scales = {},
                                             Level level = best_level());

/// Adds up blocks by pairs: 0 and 1, 2 and 3, …, then the sums of 0-1 and 2-3, …. A sum without a
/// partner waits for the next round.
class AdasumTotal {
 public:
  void add(const AdasumProducts& block);
  [[nodiscard]] AdasumProducts value() const;
  void clear() noexcept;

 private:
  std::vector<AdasumProducts> waiting_;  // sums of 2^k blocks, with falling k
  std::size_t blocks_ = 0;
};

/// The scales with which to compute the products again, if `products`, computed without scales,
/// have overflowed.
[[nodiscard]] AdasumScales adasum_scales(const AdasumProducts& products, DType dtype) noexcept;

/// 1 - <a, b> / (2 <a, a>) and likewise for b; 1 for a vector that is practically zero.
[[nodiscard]] AdasumWeights adasum_weights(const AdasumProducts& products,
                                           const AdasumScales& scales = {}) noexcept;

/// out = weights.a * a + weights.b * b, rounded to the type at the end (half types: by way of
/// float32).
void adasum_combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                    DType dtype, const AdasumWeights& weights, Level level = best_level());

}  // namespace farandole

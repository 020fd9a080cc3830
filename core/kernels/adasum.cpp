#include "kernels/adasum.h"

#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/default_arithmetic.h"
#include "kernels/table.h"

namespace farandole {
namespace {

/// Squares of float64 overflow beyond 2^512. With values below this limit, 2^40 squares add up.
constexpr double kSmaller = 0x1p-540;
/// The square root of the smallest normal float64. A smaller squared norm counts as zero.
constexpr double kZero = 0x1p-511;
static_assert(kZero * kZero == std::numeric_limits<double>::min());

AdasumProducts sum(const AdasumProducts& one, const AdasumProducts& other) {
  return {one.ab + other.ab, one.aa + other.aa, one.bb + other.bb};
}

/// Of a vector that was multiplied with `scale`, `ratio` times as much as the other one was.
double weight(double product, double square, double scale, double ratio) {
  if (square < kZero && scale == 1.0) return 1.0;
  return 1.0 - product / square * 0.5 * ratio;  // 2 * square might overflow
}

}  // namespace

AdasumProducts adasum_products(const std::byte* a, const std::byte* b, std::size_t count,
                               DType dtype, const AdasumScales& scales, Level level) {
  assert(count <= kAdasumBlock);
  const DefaultArithmetic guard;
  AdasumProducts products;
  const auto function = kernels::table_of(level).adasum_products[static_cast<std::size_t>(dtype)];
  function(&products.ab, &products.aa, &products.bb, a, b, count, scales.a, scales.b);
  return products;
}

void AdasumTotal::add(const AdasumProducts& block) {
  const DefaultArithmetic guard;
  AdasumProducts carry = block;
  for (std::size_t bits = blocks_++; (bits & 1) != 0; bits >>= 1) {
    carry = sum(waiting_.back(), carry);
    waiting_.pop_back();
  }
  waiting_.push_back(carry);
}

AdasumProducts AdasumTotal::value() const {
  if (waiting_.empty()) return {};
  const DefaultArithmetic guard;
  AdasumProducts total = waiting_.back();
  for (std::size_t i = waiting_.size() - 1; i > 0; --i) total = sum(waiting_[i - 1], total);
  return total;
}

void AdasumTotal::clear() noexcept {
  waiting_.clear();
  blocks_ = 0;
}

AdasumScales adasum_scales(const AdasumProducts& products, DType dtype) noexcept {
  if (dtype != DType::Float64) return {};  // squares of the other types cannot overflow
  return {.a = std::isfinite(products.aa) ? 1.0 : kSmaller,
          .b = std::isfinite(products.bb) ? 1.0 : kSmaller};
}

AdasumWeights adasum_weights(const AdasumProducts& products, const AdasumScales& scales) noexcept {
  const DefaultArithmetic guard;
  return {.a = weight(products.ab, products.aa, scales.a, scales.a / scales.b),
          .b = weight(products.ab, products.bb, scales.b, scales.b / scales.a)};
}

void adasum_combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                    DType dtype, const AdasumWeights& weights, Level level) {
  if (count == 0) return;
  const DefaultArithmetic guard;
  kernels::table_of(level).adasum_combine[static_cast<std::size_t>(dtype)](out, a, b, count,
                                                                           weights.a, weights.b);
}

}  // namespace farandole

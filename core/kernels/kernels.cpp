#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "kernels/default_arithmetic.h"
#include "kernels/table.h"

namespace farandole {
namespace {

#if defined(__x86_64__)
/// Asks the processor itself, because clang 14 does not know the name of this feature. The check
/// beside it covers that the system saves wide registers.
bool has_f16c() noexcept {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/// Null where the build or the processor lacks the level.
const kernels::Table* find(Level level) noexcept {
  switch (level) {
    case Level::Baseline:
      return kernels::baseline_table();
#if defined(__x86_64__)
    case Level::Avx2:
      return __builtin_cpu_supports("avx2") && has_f16c() && __builtin_cpu_supports("fma")
                 ? kernels::avx2_table()
                 : nullptr;
    case Level::Avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                     has_f16c() && __builtin_cpu_supports("fma")
                 ? kernels::avx512_table()
                 : nullptr;
#endif
    default:
      return nullptr;
  }
}

/// The dispatch table: chosen at the first call, constant from then on.
const std::array<const kernels::Table*, kLevels>& tables() noexcept {
  static const std::array<const kernels::Table*, kLevels> found{
      find(Level::Baseline), find(Level::Avx2), find(Level::Avx512)};
  return found;
}

kernels::Fold fold_of(ReduceOp op, DType dtype) noexcept {
  switch (op) {
    case ReduceOp::Sum:
      return kernels::kSum;
    case ReduceOp::Product:
      return kernels::kProduct;
    case ReduceOp::Min:
      return kernels::kMin;
    case ReduceOp::Max:
      return kernels::kMax;
    case ReduceOp::Average:
      assert(dtype == DType::Bool && "the engine turns Average into Sum with a postscale");
      return kernels::kMin;
    case ReduceOp::Adasum:
      break;
  }
  assert(false && "not an element-wise reduction");
  (void)dtype;
  return kernels::kSum;
}

}  // namespace

const kernels::Table& kernels::table_of(Level level) noexcept {
  const kernels::Table* found = tables()[static_cast<std::size_t>(level)];
  assert(found != nullptr && "ask supported() first");
  return *found;
}

std::string_view name_of(Level level) noexcept {
  constexpr std::array<std::string_view, kLevels> names{"baseline", "avx2", "avx512"};
  return names[static_cast<std::size_t>(level)];
}

bool supported(Level level) noexcept {
  return tables()[static_cast<std::size_t>(level)] != nullptr;
}

Level best_level() noexcept {
  static const Level best = supported(Level::Avx512) ? Level::Avx512
                            : supported(Level::Avx2) ? Level::Avx2
                                                     : Level::Baseline;
  return best;
}

void scale_copy(std::byte* out, const std::byte* in, std::size_t count, DType dtype, double factor,
                Level level) {
  if (count == 0) return;
  if (factor == 1.0 || dtype == DType::Bool) {
    if (out != in) std::memcpy(out, in, count * size_of(dtype));
    return;
  }
  const DefaultArithmetic guard;
  kernels::table_of(level).scale[static_cast<std::size_t>(dtype)](out, in, count, factor);
}

void reduce(std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
            DType dtype, ReduceOp op, double postscale, std::byte* also_out, Level level) {
  assert(!sources.empty());
  const kernels::Fold fold = fold_of(op, dtype);
  if (count == 0) return;
  if (dtype == DType::Bool) postscale = 1.0;
  if (sources.size() == 1) {
    // `also_out` first: scaling `out` in place would spoil the source.
    if (also_out != nullptr) {
      if (also_out == sources[0]) std::swap(also_out, out);
      scale_copy(also_out, sources[0], count, dtype, postscale, level);
    }
    scale_copy(out, sources[0], count, dtype, postscale, level);
    return;
  }
  const DefaultArithmetic guard;
  kernels::table_of(level).reduce[static_cast<std::size_t>(dtype)][fold](
      out, also_out, sources.data(), sources.size(), count, postscale);
}

}  // namespace farandole

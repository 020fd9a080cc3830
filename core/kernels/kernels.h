/// Element-wise arithmetic on raw memory: scale while copying, reduce many sources into one.
///
/// Bits. The inputs alone decide the bits of a result (P4). The Level, the alignment, the way in
/// which calls are cut into smaller ones, and the rounding and flush-to-zero settings of the
/// calling thread have no influence. Any NaN that arithmetic yields is the positive quiet NaN
/// without payload, so Sum, Product, Min and Max of two values commute bit for bit. Nothing is
/// contracted to FMA.
///
/// Memory. Any alignment is legal. A destination may be the very same pointer as a source (in
/// place); other overlaps are not allowed. Zero elements are legal with any pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "types.h"

namespace farandole {

/// Instruction sets the kernels are compiled for. Baseline is always there.
enum class Level : std::uint8_t { Baseline = 0, Avx2 = 1, Avx512 = 2 };
inline constexpr std::size_t kLevels = 3;

[[nodiscard]] std::string_view name_of(Level level) noexcept;
/// Whether this build has the level and this processor can run it.
[[nodiscard]] bool supported(Level level) noexcept;
/// The highest supported level, found once.
[[nodiscard]] Level best_level() noexcept;

/// out[i] = factor * in[i], rounded to `dtype`:
/// * factor exactly 1.0, and Bool with any factor: a plain copy (NaN payloads stay).
/// * Float32 with the factor as float32, Float64 as is.
/// * Float16, BFloat16: multiplied in float32 (factor as float32), rounded to nearest even.
/// * Integers: multiplied in float64, truncated toward zero; what does not fit becomes the nearest
///   limit of the type, NaN becomes 0. Where the factor is 1 / n rounded, as an average has it, the
///   value is divided by n, exactly for all integers.
void scale_copy(std::byte* out, const std::byte* in, std::size_t count, DType dtype, double factor,
                Level level = best_level());

/// out[i] = postscale * (sources[0][i] op sources[1][i] op …), folded strictly left to right, p
/// >= 1.
/// * Float16, BFloat16: folded in float32, rounded once to `dtype` at the end; Float32 and Float64
///   in their own type; integers in their own type, wrapping.
/// * Min, Max: NaN wins over numbers; -0 is less than +0.
/// * Bool: any byte but 0 is true, results are 0 or 1. Sum, Max: or. Product, Min, Average: and.
/// * One source alone is only scaled, as by scale_copy.
/// `postscale` multiplies the reduced value before it is rounded to `dtype`: the mean of half types
/// is finite and rounded once, also where their sum fits no half. For all other types that is what
/// scale_copy(out, out, …, postscale) would do afterwards.
/// `also_out`, if given, gets the same bytes as `out` in the same pass.
/// `op` is never Adasum, and Average only on Bool (assertion). `out` and `also_out` may each be the
/// same pointer as one of the sources, but not as each other.
void reduce(std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
            DType dtype, ReduceOp op, double postscale = 1.0, std::byte* also_out = nullptr,
            Level level = best_level());

}  // namespace farandole

/// Averages of integers, exact: the sum of two int8 may fit no int8, but their average always does.
///
/// On its way a value is a *wide* one: it is summed as int64. Of an int64 the upper and the lower
/// half are summed apart, so that no sum of fewer than 2^31 values overflows.
///
/// Memory: any alignment is legal; zero elements are legal with any pointers.
#pragma once

#include <cstddef>
#include <span>

#include "types.h"

namespace farandole {

/// The type of the halves and of what has one part only.
inline constexpr DType kWideType = DType::Int64;

[[nodiscard]] bool is_integer(DType dtype) noexcept;
/// Number of int64 that hold a value of that type while it is summed.
[[nodiscard]] std::size_t wide_parts(DType dtype) noexcept;

/// The parts of `prescale * in`, which is scaled as by scale_copy(). Part p of element i goes to
/// wide[p * stride + i], in elements.
void widen(std::byte* wide, std::size_t stride, const std::byte* in, std::size_t count, DType dtype,
           double prescale);
/// out[i] = factor * (the sum whose parts those are), truncated toward zero; what does not fit
/// becomes the nearest limit of the type. Where the factor is 1 / n rounded, as an average has it,
/// the sum is divided by n, exactly.
void narrow(std::byte* out, const std::byte* wide, std::size_t stride, std::size_t count,
            DType dtype, double factor);
/// Both at once: out[i] = factor * (sources[0][i] + sources[1][i] + …). `out` may be a source.
void average_integers(std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                      DType dtype, double factor);

}  // namespace farandole

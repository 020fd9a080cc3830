/// Divisions and multiples that are rounded up.
#pragma once

#include <cstddef>

namespace farandole {

/// How many parts of `unit` it takes to hold `amount`. `unit` is not 0.
[[nodiscard]] constexpr std::size_t ceil_div(std::size_t amount, std::size_t unit) noexcept {
  return (amount + unit - 1) / unit;
}

/// The smallest multiple of `unit` that is not below `amount`. `unit` is not 0.
[[nodiscard]] constexpr std::size_t round_up(std::size_t amount, std::size_t unit) noexcept {
  return ceil_div(amount, unit) * unit;
}

}  // namespace farandole

/// Numbers in little-endian order, that of all wire formats here.
#pragma once

#include <concepts>
#include <cstddef>

namespace farandole {

template <std::unsigned_integral T>
constexpr void store_little_endian(std::byte* out, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
[[nodiscard]] constexpr T load_little_endian(const std::byte* in) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(in[i]) << (8 * i)));
  }
  return value;
}

}  // namespace farandole

/// Numbers of callers: they stand for enumerators, which are indices into tables, so they are
/// checked before they become any. Beyond the border they are known to be in range.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace farandole::bindings {

constexpr std::int32_t kMostDimensions = 64;  // as on the wire

[[nodiscard]] constexpr bool is_below(std::int64_t end, std::int64_t number) noexcept {
  return number >= 0 && number < end;
}

/// "dtype 11 means nothing"
[[nodiscard]] inline std::string means_nothing(std::string what, std::int64_t number) {
  return std::move(what) + " " + std::to_string(number) + " means nothing";
}

}  // namespace farandole::bindings

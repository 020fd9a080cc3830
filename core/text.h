/// Small things about text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "types.h"

namespace farandole {

/// The longest beginning of at most `room` bytes that does not end inside a UTF-8 character.
[[nodiscard]] constexpr std::string_view utf8_prefix(std::string_view text,
                                                     std::size_t room) noexcept {
  if (text.size() <= room) return text;
  std::size_t end = room;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

/// "rank 3", "ranks 0-3, 7"; they ascend.
[[nodiscard]] std::string list_ranks(std::span<const Rank> ranks);

/// "rank 3 on host b", as every message names a rank; without a host if that is not known. `hosts`:
/// host name by rank.
[[nodiscard]] std::string rank_on_host(Rank rank, std::span<const std::string> hosts);

/// Appends `text` as a JSON string with its quotes. What is not UTF-8 becomes U+FFFD.
void append_json(std::string& out, std::string_view text);

}  // namespace farandole

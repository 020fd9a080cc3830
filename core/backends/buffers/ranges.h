/// Parts of lists of spans, taken as one range of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace farandole {

template <typename Byte>
[[nodiscard]] std::size_t total_bytes(const std::vector<std::span<Byte>>& spans) {
  std::size_t bytes = 0;
  for (const auto& span : spans) bytes += span.size();
  return bytes;
}

/// Calls visit(part of a span) for every span that has part in the bytes [begin, end).
template <typename Byte, typename Visit>
void for_each_part(const std::vector<std::span<Byte>>& spans, std::size_t begin, std::size_t end,
                   Visit visit) {
  std::size_t at = 0;
  for (const auto& span : spans) {
    const std::size_t first = std::max(begin, at);
    const std::size_t last = std::min(end, at + span.size());
    if (first < last) visit(span.subspan(first - at, last - first));
    at += span.size();
  }
}

}  // namespace farandole

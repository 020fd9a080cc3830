/// Lists of spans, taken as one run of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
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

/// Spans in a row, seen as one run of bytes.
///
/// `Byte` is std::byte or const std::byte.
template <typename Byte>
class SpanList {
 public:
  explicit SpanList(std::vector<std::span<Byte>> spans) : spans_(std::move(spans)) {
    std::erase_if(spans_, [](const auto& span) { return span.empty(); });
    ends_.reserve(spans_.size());
    for (const auto& span : spans_) ends_.push_back(bytes() + span.size());
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

  /// Bytes [begin, begin + count) if they lie in one span; null if they do not.
  [[nodiscard]] Byte* contiguous(std::size_t begin, std::size_t count) const {
    const std::size_t index = find(begin);
    if (begin + count > ends_[index]) return nullptr;
    return spans_[index].data() + (begin - start(index));
  }

  /// What there is of the bytes [begin, begin + count).
  [[nodiscard]] std::vector<std::span<Byte>> part(std::size_t begin, std::size_t count) const {
    std::vector<std::span<Byte>> spans;
    begin = std::min(begin, bytes());
    for_each(begin, std::min(count, bytes() - begin),
             [&](std::span<Byte> span, std::size_t) { spans.push_back(span); });
    return spans;
  }

  /// Calls visit(bytes of one span, where they begin in the range) for all of the range.
  template <typename Visit>
  void for_each(std::size_t begin, std::size_t count, Visit visit) const {
    std::size_t before = 0;
    for (std::size_t index = find(begin); before < count; ++index) {
      const auto rest = spans_[index].subspan(begin + before - start(index));
      const auto part = rest.first(std::min(rest.size(), count - before));
      visit(part, before);
      before += part.size();
    }
  }

 private:
  [[nodiscard]] std::size_t find(std::size_t begin) const {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) -
                                    ends_.begin());
  }
  [[nodiscard]] std::size_t start(std::size_t index) const {
    return index == 0 ? 0 : ends_[index - 1];
  }

  std::vector<std::span<Byte>> spans_;  // without empty ones
  std::vector<std::size_t> ends_;
};

}  // namespace farandole

/// Goes once through many spans as if they were one.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace rueda {

/// `Byte` is std::byte or const std::byte. Copies the list, not the bytes.
template <typename Byte>
class SpanCursor {
 public:
  SpanCursor() = default;
  explicit SpanCursor(std::vector<std::span<Byte>> spans) : spans_(std::move(spans)) {
    for (const auto& span : spans_) left_ += span.size();
  }

  [[nodiscard]] std::size_t left() const noexcept { return left_; }

  /// The next `bytes` go to `out`.
  void read(std::byte* out, std::size_t bytes) {
    advance(bytes, [&](std::span<Byte> part) {
      std::memcpy(out, part.data(), part.size());
      out += part.size();
    });
  }
  /// The next `bytes` come from `in`.
  void write(const std::byte* in, std::size_t bytes) {
    advance(bytes, [&](std::span<Byte> part) {
      std::memcpy(part.data(), in, part.size());
      in += part.size();
    });
  }

 private:
  template <typename Visit>
  void advance(std::size_t bytes, Visit visit) {
    assert(bytes <= left_);
    left_ -= bytes;
    while (bytes > 0) {
      const std::span<Byte> span = spans_[next_];
      const std::size_t part = std::min(bytes, span.size() - offset_);
      if (part > 0) visit(span.subspan(offset_, part));
      bytes -= part;
      offset_ += part;
      if (offset_ == span.size()) {
        ++next_;
        offset_ = 0;
      }
    }
  }

  std::vector<std::span<Byte>> spans_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
  std::size_t left_ = 0;
};

}  // namespace rueda

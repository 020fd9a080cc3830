/// Memory that several ranks of a host share, mapped into this process.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "result.h"
#include "transport/fd.h"

namespace farandole {

/// Owns a mapping of a memfd, or refers to memory of another owner.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  /// Maps `bytes` of a memfd. The first `reserved` bytes get memory now, so that a lack of memory
  /// is an error here and not a SIGBUS later. The rest is address space until it is reserved.
  /// Forked children do not inherit the mapping. Fails if the file is smaller.
  [[nodiscard]] static Result<ShmSegment> map(Fd memfd, std::size_t bytes, std::size_t reserved);
  [[nodiscard]] static Result<ShmSegment> map(Fd memfd, std::size_t bytes) {
    return map(std::move(memfd), bytes, bytes);
  }

  /// For tests in which ranks are threads: the thread sanitizer sees races only if all ranks use
  /// one mapping. `memory` must outlive the segment.
  [[nodiscard]] static ShmSegment share(std::span<std::byte> memory) noexcept;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

  /// Reserves memory for a part of the file, for all ranks that map it. Memory that was reserved
  /// before keeps its content.
  [[nodiscard]] Result<void> reserve(std::size_t offset, std::size_t bytes);

  /// The size of the file, which may be larger than a mapping of it.
  [[nodiscard]] static Result<std::size_t> size_of(const Fd& memfd);

  /// The file, only needed by reserve(): the mapping keeps the memory alive. -1 if there is none.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// Gives the file away; reserve() fails from then on.
  [[nodiscard]] Fd take_file() noexcept { return std::move(file_); }

 private:
  ShmSegment(std::span<std::byte> memory, bool owned) noexcept : bytes_(memory), owned_(owned) {}
  void reset() noexcept;

  std::span<std::byte> bytes_;
  bool owned_ = false;
  Fd file_;
};

}  // namespace farandole

/// A mapping of memory that several ranks of a host share.
#pragma once

#include <cstddef>
#include <span>

#include "result.h"
#include "transport/fd.h"

namespace rueda {

/// Owns a mapping of a memfd, or lends memory that somebody else owns.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  /// Maps `bytes` of a memfd, reserved and touched now, so that a lack of memory is an error here
  /// and not a SIGBUS later. The mapping does not pass to forked children. The descriptor is
  /// closed: the mapping keeps the memory alive. Fails if the file is smaller.
  [[nodiscard]] static Result<ShmSegment> map(Fd memfd, std::size_t bytes);

  /// For ranks that are threads of one process: the thread sanitizer sees a race only if all of
  /// them use one mapping. `memory` must outlive the segment.
  [[nodiscard]] static ShmSegment share(std::span<std::byte> memory) noexcept;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  ShmSegment(std::span<std::byte> memory, bool owned) noexcept : bytes_(memory), owned_(owned) {}
  void reset() noexcept;

  std::span<std::byte> bytes_;
  bool owned_ = false;
};

}  // namespace rueda

/// Memory that several ranks of a host share, mapped into this process: the segment of each rank,
/// and the heap for tensors at its end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "mutex.h"
#include "result.h"
#include "transport/fd.h"
#include "transport/shm_layout.h"

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

/// Memory for tensors that all ranks of a host can read: the last part of a segment's file.
///
/// It is address space only until it is used: it is mapped with the first tensor, and memory is
/// reserved as tensors are made. The owner allocates from its heap; other ranks read it where the
/// owner says. A forked child does not have it: an access there is a SIGSEGV.
class ShmHeap {
 public:
  /// `file`: that of a segment; without one there is no memory. `extent`: heap_extent().
  ShmHeap(Fd file, ShmExtent extent) noexcept : file_(std::move(file)), extent_(extent) {}
  /// For ranks that are threads of one process: memory of another owner, which outlives this.
  explicit ShmHeap(std::span<std::byte> memory) noexcept;
  ShmHeap(const ShmHeap&) = delete;
  ShmHeap& operator=(const ShmHeap&) = delete;
  ~ShmHeap();

  /// For the owner: new memory, aligned to 64 bytes. Fails if none is left. Any thread.
  [[nodiscard]] Result<std::byte*> extend(std::size_t bytes);
  /// The offset of `bytes` at `data` in this heap; none if they are not in it. Any thread.
  [[nodiscard]] std::optional<std::uint64_t> find(const std::byte* data,
                                                  std::size_t bytes) const noexcept;
  /// The address of `bytes` at the owner's `offset`. The first call maps the heap, and fails if the
  /// system does not allow that. Any thread.
  [[nodiscard]] Result<std::byte*> at(std::uint64_t offset, std::size_t bytes);

  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// For a forked child, which does not have the mapping: another one may lie at its address, which
  /// must not be unmapped with this object. Async-signal-safe.
  void leave_to_parent() noexcept { owned_ = false; }

 private:
  Result<std::byte*> map() FARANDOLE_REQUIRES(mutex_);

  Fd file_;
  ShmExtent extent_;
  bool owned_ = false;
  std::atomic<std::byte*> base_{nullptr};
  Mutex mutex_;
  std::size_t used_ FARANDOLE_GUARDED_BY(mutex_) = 0;      // bytes that were allocated
  std::size_t reserved_ FARANDOLE_GUARDED_BY(mutex_) = 0;  // bytes that have memory
};

}  // namespace farandole

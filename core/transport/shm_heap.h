/// Memory for tensors that all ranks of a host can read: the last part of a segment's file.
///
/// It is address space only until it is used: it is mapped with the first tensor, and memory is
/// reserved as tensors are made. The owner allocates from its heap; other ranks read it where the
/// owner says. A forked child does not have it: an access there is a SIGSEGV.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "mutex.h"
#include "result.h"
#include "transport/fd.h"
#include "transport/shm_layout.h"

namespace farandole {

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

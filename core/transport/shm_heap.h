/// Memory for tensors that all ranks of a host reach: the end of a segment's file.
///
/// Address space only until it is used: nothing is mapped before the first tensor, and memory comes
/// as tensors are made. The owner takes from its heap; others look into it where the owner says. A
/// forked child has none of it: there a touch is a SIGSEGV.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "result.h"
#include "transport/fd.h"
#include "transport/shm_layout.h"

namespace rueda {

class ShmHeap {
 public:
  /// `file`: a segment's, or none: then there is no memory. `extent`: heap_extent().
  ShmHeap(Fd file, ShmExtent extent) noexcept : file_(std::move(file)), extent_(extent) {}
  /// For ranks that are threads of one process: the memory of somebody else, which outlives this.
  explicit ShmHeap(std::span<std::byte> memory) noexcept;
  ShmHeap(const ShmHeap&) = delete;
  ShmHeap& operator=(const ShmHeap&) = delete;
  ~ShmHeap();

  /// Owner: memory that was not given before, aligned to 64. Fails if there is none left. Any
  /// thread.
  [[nodiscard]] Result<std::byte*> extend(std::size_t bytes);
  /// Where `bytes` at `data` lie in this heap; none if they do not. Any thread.
  [[nodiscard]] std::optional<std::uint64_t> find(const std::byte* data,
                                                  std::size_t bytes) const noexcept;
  /// Where its owner has `bytes` at `offset`. Maps the heap if this is the first time; fails if the
  /// system does not allow that. Any thread.
  [[nodiscard]] Result<std::byte*> at(std::uint64_t offset, std::size_t bytes);

  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// In a forked child, which does not have the mapping: its place may be taken by another one,
  /// which must not go with this. Async-signal-safe.
  void leave_to_parent() noexcept { owned_ = false; }

 private:
  Result<std::byte*> map();  // with the mutex

  Fd file_;
  ShmExtent extent_;
  bool owned_ = false;
  std::atomic<std::byte*> base_{nullptr};
  std::mutex mutex_;          // guards the rest
  std::size_t used_ = 0;      // bytes that were given
  std::size_t reserved_ = 0;  // bytes that have memory
};

}  // namespace rueda

/// Recycled host memory: for results, and for tensors that the ranks of a host share.
///
/// That for results lies on huge pages where the system allows them: the first touch of fresh pages
/// costs several times what a collective does (128 MiB: 42 ms, on huge pages 12 ms).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "mutex.h"

namespace farandole {

class HostPool;

/// Memory that goes back to its pool at the end. Move-only; may outlive the engine.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  friend class HostPool;
  HostBuffer(std::shared_ptr<HostPool> pool, std::byte* data, std::size_t capacity) noexcept
      : pool_(std::move(pool)), data_(data), capacity_(capacity) {}

  std::shared_ptr<HostPool> pool_;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

/// Where a pool gets its memory.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Aligned to 64; null if there is none. Any thread.
  [[nodiscard]] virtual std::byte* allocate(std::size_t capacity) = 0;
  virtual void release(std::byte* data, std::size_t capacity) noexcept = 0;
};

/// Memory that nobody else sees.
[[nodiscard]] std::unique_ptr<MemorySource> private_memory();

class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  /// `keep_bytes`: when more than this is free, the oldest goes back to the system.
  explicit HostPool(std::size_t keep_bytes, std::unique_ptr<MemorySource> source = private_memory())
      : source_(std::move(source)), keep_bytes_(keep_bytes) {}
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// At least `bytes`, aligned to 64; no data() if there is no memory. Any thread.
  [[nodiscard]] HostBuffer take(std::size_t bytes);
  /// Nothing more will be taken: what is free goes back to the system now, the rest when it is
  /// given back. Any thread.
  void close() noexcept;

 private:
  friend class HostBuffer;
  struct Block {
    std::byte* data;
    std::size_t capacity;
  };
  void give_back(Block block) noexcept;

  std::unique_ptr<MemorySource> source_;
  Mutex mutex_;
  std::vector<Block> free_ FARANDOLE_GUARDED_BY(mutex_);
  std::size_t kept_bytes_ FARANDOLE_GUARDED_BY(mutex_) = 0;
  std::size_t keep_bytes_ FARANDOLE_GUARDED_BY(mutex_);
};

}  // namespace farandole

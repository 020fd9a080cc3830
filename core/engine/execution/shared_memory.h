/// The heap of the own segment as a source of recycled memory.
#pragma once

#include <memory>
#include <utility>

#include "engine/base/fork_guard.h"
#include "memory/host_pool.h"
#include "transport/shm_segment.h"

namespace farandole {

/// Lives as long as anything in it. In a forked child what was taken is not there.
class SharedMemory final : public MemorySource {
 public:
  explicit SharedMemory(std::shared_ptr<ShmHeap> heap) : heap_(std::move(heap)) {
    fork_guard_.cover({heap_->fd()}, heap_.get());
  }

  std::byte* allocate(std::size_t capacity) override {
    auto data = heap_->extend(capacity);
    return data ? *data : nullptr;
  }
  /// Not possible; a pool that keeps everything never asks.
  void release(std::byte*, std::size_t) noexcept override {}

 private:
  std::shared_ptr<ShmHeap> heap_;
  ForkGuard fork_guard_;
};

}  // namespace farandole

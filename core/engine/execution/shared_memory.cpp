#include "engine/execution/shared_memory.h"

#include <utility>

namespace farandole {

SharedMemory::SharedMemory(std::shared_ptr<ShmHeap> heap) : heap_(std::move(heap)) {
  fork_guard_.cover({heap_->fd()}, heap_.get());
}

std::byte* SharedMemory::allocate(std::size_t capacity) {
  auto data = heap_->extend(capacity);
  return data ? *data : nullptr;
}

}  // namespace farandole

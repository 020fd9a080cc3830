#include "engine/host_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

namespace rueda {

namespace {
constexpr std::size_t kAlignment = 64;  // what frameworks expect of their own tensors
constexpr std::size_t kPage = 4096;

/// Powers of two up to a page, then whole pages: close sizes share blocks, little is wasted.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= kPage) return std::bit_ceil(std::max(bytes, kAlignment));
  return (bytes + kPage - 1) / kPage * kPage;
}
}  // namespace

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) pool_->give_back({data_, capacity_});
}

HostPool::~HostPool() {
  for (const Block& block : free_) std::free(block.data);
}

HostBuffer HostPool::take(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const Block& block) {
      return block.capacity >= capacity && block.capacity <= capacity + capacity / 4;
    });
    if (found != free_.end()) {
      const Block block = *found;
      free_.erase(found);
      kept_bytes_ -= block.capacity;
      return {shared_from_this(), block.data, block.capacity};
    }
  }
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity));
  if (data == nullptr) return {};
  return {shared_from_this(), data, capacity};
}

void HostPool::give_back(Block block) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (kept_bytes_ + block.capacity <= keep_bytes_) {
      kept_bytes_ += block.capacity;
      free_.push_back(block);
      return;
    }
  }
  std::free(block.data);
}

}  // namespace rueda

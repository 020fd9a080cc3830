#include "memory/host_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace farandole {

namespace {
constexpr std::size_t kAlignment = 64;  // what frameworks expect of their own tensors
constexpr std::size_t kPage = 4096;

constexpr std::size_t kHugePage = std::size_t{2} << 20;
/// From here on a block has mappings of its own. (Up to 32 MiB malloc() keeps memory by itself.)
constexpr std::size_t kMapped = 2 * kHugePage;

/// Powers of two up to a page, then whole pages: close sizes share blocks, little is wasted.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= kPage) return std::bit_ceil(std::max(bytes, kAlignment));
  const std::size_t unit = bytes < kMapped ? kPage : kHugePage;
  return (bytes + unit - 1) / unit * unit;
}

/// Aligned to huge pages, or it would hold one less.
std::byte* map(std::size_t capacity) {
  void* const got = ::mmap(nullptr, capacity + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(got);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  std::byte* const data = begin + before;
  if (before < kHugePage) ::munmap(data + capacity, kHugePage - before);
  // Refused where the system has none: then it is ordinary memory.
  static_cast<void>(::madvise(data, capacity, MADV_HUGEPAGE));
  return data;
}

class PrivateMemory final : public MemorySource {
 public:
  std::byte* allocate(std::size_t capacity) override {
    if (capacity >= kMapped) return map(capacity);
    return static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity));
  }

  void release(std::byte* data, std::size_t capacity) noexcept override {
    if (capacity >= kMapped) {
      ::munmap(data, capacity);
    } else {
      std::free(data);
    }
  }
};
}  // namespace

std::unique_ptr<MemorySource> private_memory() { return std::make_unique<PrivateMemory>(); }

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
  for (const Block& block : free_) source_->release(block.data, block.capacity);
}

HostBuffer HostPool::take(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  {
    const Lock lock(mutex_);
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
  std::byte* const data = source_->allocate(capacity);
  if (data == nullptr) return {};
  return {shared_from_this(), data, capacity};
}

void HostPool::close() noexcept {
  std::vector<Block> free;
  {
    const Lock lock(mutex_);
    keep_bytes_ = 0;
    kept_bytes_ = 0;
    free.swap(free_);
  }
  for (const Block& block : free) source_->release(block.data, block.capacity);
}

/// What came last is most likely to be wanted again: the oldest blocks make room for it.
void HostPool::give_back(Block block) noexcept {
  std::vector<Block> freed;
  {
    const Lock lock(mutex_);
    if (block.capacity <= keep_bytes_) {
      auto oldest = free_.begin();
      while (kept_bytes_ + block.capacity > keep_bytes_) kept_bytes_ -= (oldest++)->capacity;
      freed.assign(free_.begin(), oldest);
      free_.erase(free_.begin(), oldest);
      kept_bytes_ += block.capacity;
      free_.push_back(block);
    } else {
      freed.push_back(block);
    }
  }
  for (const Block& each : freed) source_->release(each.data, each.capacity);
}

}  // namespace farandole

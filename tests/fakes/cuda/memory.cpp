#include "cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "faults.h"

namespace farandole::fakes {
namespace {

constexpr std::size_t kPage = 4096;
/// Addresses are used again only after so many others, so that a stale one is noticed.
constexpr std::size_t kRange = std::size_t{128} << 30U;
/// What was freed keeps its pages, full of kStale, until so much was freed after it.
constexpr std::size_t kQuarantine = std::size_t{64} << 20U;
constexpr std::uint64_t kMagic = 0x52554544414D454DU;

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

DriverAddress number(const void* pointer) { return reinterpret_cast<DriverAddress>(pointer); }

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

Block::~Block() {
  if (kind == Kind::Opened) ::munmap(content, pages(bytes));
}

Memory& Memory::get() {
  static Memory& memory = *new Memory;
  return memory;
}

Memory::Memory() : file_(::memfd_create("fake device memory", MFD_CLOEXEC)) {
  if (file_ < 0 || ::ftruncate(file_, kRange) != 0) give_up("fake CUDA: memfd");
  void* contents =
      ::mmap(nullptr, kRange, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  void* addresses =
      ::mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (contents == MAP_FAILED || addresses == MAP_FAILED) give_up("fake CUDA: range of addresses");
  ::madvise(contents, kRange, MADV_DONTDUMP);
  contents_ = static_cast<std::byte*>(contents);
  addresses_ = static_cast<std::byte*>(addresses);
}

std::size_t Memory::bytes_of_device() {
  static const auto bytes =
      static_cast<std::size_t>(number_of_environment("FAKE_CUDA_MEMORY_MB", 4096)) << 20U;
  return bytes;
}

std::size_t Memory::choose_offset(std::size_t bytes) {
  const std::size_t needed = pages(bytes) + kPage;
  for (int round = 0; round < 2; ++round) {
    std::size_t offset = next_offset_;
    // Moves behind every block that is in the way.
    for (auto next = device_.lower_bound(number(addresses_ + offset));
         next != device_.end() && next->first < number(addresses_ + offset + needed); ++next) {
      offset = next->first - number(addresses_) + pages(next->second->bytes) + kPage;
    }
    if (offset + needed <= kRange) {
      next_offset_ = offset + needed;
      return offset;
    }
    next_offset_ = 0;
  }
  return kRange;
}

DriverStatus Memory::allocate(Context& context, std::size_t bytes, DriverAddress& address) {
  if (bytes == 0) return kDriverInvalidValue;
  const std::unique_lock lock(blocks_lock_);
  std::size_t used = 0;
  for (const auto& [_, block] : device_) {
    if (block->context == &context && block->kind == Block::Kind::Device) used += block->bytes;
  }
  if (bytes > bytes_of_device() || used > bytes_of_device() - bytes) return kDriverOutOfMemory;
  const std::size_t offset = choose_offset(bytes);
  if (offset == kRange) return kDriverOutOfMemory;
  std::memset(contents_ + offset, kStale, bytes);
  address = number(addresses_ + offset);
  device_[address] = std::shared_ptr<Block>(new Block{.kind = Block::Kind::Device,
                                                      .context = &context,
                                                      .number = next_number_++,
                                                      .address = address,
                                                      .bytes = bytes,
                                                      .content = contents_ + offset});
  return kDriverSuccess;
}

void Memory::end(Block& block) {
  block.freed.store(true, std::memory_order_relaxed);
  switch (block.kind) {
    case Block::Kind::Device:
      std::memset(block.content, kStale, block.bytes);
      quarantine_.emplace_back(block.content, pages(block.bytes));
      quarantine_bytes_ += pages(block.bytes);
      while (quarantine_bytes_ > kQuarantine) {
        const std::span<std::byte> oldest = quarantine_.front();
        quarantine_.pop_front();
        quarantine_bytes_ -= oldest.size();
        ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, oldest.data() - contents_,
                    static_cast<off_t>(oldest.size()));
      }
      break;
    case Block::Kind::Opened:
      break;  // stays mapped while a command may still look at it
    case Block::Kind::Pinned:
      std::memset(block.content, kStale, block.bytes);
      std::free(block.content);
      break;
    case Block::Kind::Registered:
      break;
  }
}

std::shared_ptr<Block> Memory::take_device(DriverAddress address, Block::Kind kind) {
  const auto found = device_.find(address);
  if (found == device_.end() || found->second->kind != kind) return nullptr;
  auto block = found->second;
  device_.erase(found);
  return block;
}

std::shared_ptr<Block> Memory::take_host(DriverAddress address, Block::Kind kind) {
  const auto found = host_.find(address);
  if (found == host_.end() || found->second->kind != kind) return nullptr;
  auto block = found->second;
  host_.erase(found);
  return block;
}

DriverStatus Memory::release(DriverAddress address) {
  if (address == 0) return kDriverSuccess;
  const std::unique_lock lock(blocks_lock_);
  const auto block = take_device(address, Block::Kind::Device);
  if (block == nullptr) return kDriverInvalidValue;
  end(*block);
  return kDriverSuccess;
}

DriverStatus Memory::allocate_pinned(Context& context, std::size_t bytes, void*& memory) {
  if (bytes == 0) return kDriverInvalidValue;
  // Of the ordinary heap, but in pages of its own: so the address sanitizer knows its ends.
  memory = std::aligned_alloc(kPage, pages(bytes));
  if (memory == nullptr) return kDriverOutOfMemory;
  std::memset(memory, kStale, bytes);
  const std::unique_lock lock(blocks_lock_);
  host_[number(memory)] =
      std::shared_ptr<Block>(new Block{.kind = Block::Kind::Pinned,
                                       .context = &context,
                                       .number = next_number_++,
                                       .address = number(memory),
                                       .bytes = bytes,
                                       .content = static_cast<std::byte*>(memory)});
  return kDriverSuccess;
}

DriverStatus Memory::release_pinned(void* memory) {
  if (memory == nullptr) return kDriverSuccess;
  const std::unique_lock lock(blocks_lock_);
  const auto block = take_host(number(memory), Block::Kind::Pinned);
  if (block == nullptr) return kDriverInvalidValue;
  end(*block);
  return kDriverSuccess;
}

DriverStatus Memory::pin(Context& context, void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) return kDriverInvalidValue;
  const DriverAddress address = number(memory);
  const std::unique_lock lock(blocks_lock_);
  const auto after = host_.lower_bound(address + bytes);
  if (after != host_.begin()) {
    const Block& before = *std::prev(after)->second;
    if (before.address + before.bytes > address) return kAlreadyRegistered;
  }
  host_[address] = std::shared_ptr<Block>(new Block{.kind = Block::Kind::Registered,
                                                    .context = &context,
                                                    .number = next_number_++,
                                                    .address = address,
                                                    .bytes = bytes,
                                                    .content = static_cast<std::byte*>(memory)});
  return kDriverSuccess;
}

DriverStatus Memory::unpin(void* memory) {
  const std::unique_lock lock(blocks_lock_);
  const auto block = take_host(number(memory), Block::Kind::Registered);
  if (block == nullptr) return kNotRegistered;
  end(*block);
  return kDriverSuccess;
}

DriverStatus Memory::export_block(DriverAddress address, IpcHandle& handle) {
  const Place place = find(address, 1);
  if (place.kind != Place::Kind::Device || place.block->kind != Block::Kind::Device) {
    return kDriverInvalidValue;
  }
  handle = IpcHandle{.magic = kMagic,
                     .process = ::getpid(),
                     .descriptor = file_,
                     .offset = static_cast<std::uint64_t>(place.block->content - contents_),
                     .bytes = place.block->bytes,
                     .number = place.block->number,
                     .unused = {}};
  return kDriverSuccess;
}

DriverStatus Memory::import_block(Context& context, const IpcHandle& handle,
                                  DriverAddress& address) {
  if (handle.magic != kMagic) return kDriverInvalidValue;
  if (handle.process == ::getpid()) return kInvalidContext;
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kMapFailed;
  void* content = ::mmap(nullptr, pages(handle.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                         static_cast<off_t>(handle.offset));
  ::close(file);
  if (content == MAP_FAILED) return kMapFailed;
  const std::unique_lock lock(blocks_lock_);
  const std::size_t offset = choose_offset(handle.bytes);
  if (offset == kRange) return kDriverOutOfMemory;
  address = number(addresses_ + offset);
  device_[address] = std::shared_ptr<Block>(new Block{.kind = Block::Kind::Opened,
                                                      .context = &context,
                                                      .number = next_number_++,
                                                      .address = address,
                                                      .bytes = handle.bytes,
                                                      .content = static_cast<std::byte*>(content)});
  return kDriverSuccess;
}

DriverStatus Memory::close_imported(DriverAddress address) {
  const std::unique_lock lock(blocks_lock_);
  const auto block = take_device(address, Block::Kind::Opened);
  if (block == nullptr) return kDriverInvalidValue;
  end(*block);
  return kDriverSuccess;
}

void Memory::release_all(Context& context) {
  const std::unique_lock lock(blocks_lock_);
  for (Blocks* blocks : {&device_, &host_}) {
    for (auto next = blocks->begin(); next != blocks->end();) {
      const auto block = next->second;
      if (block->context != &context) {
        ++next;
        continue;
      }
      next = blocks->erase(next);
      end(*block);
    }
  }
}

Place Memory::find(DriverAddress address, std::size_t bytes) const {
  if (address == 0) return {};
  const bool in_range = address >= number(addresses_) && address < number(addresses_) + kRange;
  const std::shared_lock lock(blocks_lock_);
  const Blocks& blocks = in_range ? device_ : host_;
  auto after = blocks.upper_bound(address);
  const bool inside = after != blocks.begin() &&
                      address < std::prev(after)->second->address + std::prev(after)->second->bytes;
  if (!inside) {
    if (in_range) return {};
    return {.kind = Place::Kind::Pageable,
            .content = reinterpret_cast<std::byte*>(address),
            .block = nullptr};
  }
  const auto& block = std::prev(after)->second;
  const std::size_t offset = address - block->address;
  if (bytes > block->bytes - offset) return {};
  return {.kind = in_range ? Place::Kind::Device : Place::Kind::Pinned,
          .content = block->content + offset,
          .block = block};
}

std::size_t Memory::used_bytes(const Context& context) const {
  std::size_t used = 0;
  const std::shared_lock lock(blocks_lock_);
  for (const auto& [_, block] : device_) {
    if (block->context == &context && block->kind == Block::Kind::Device) used += block->bytes;
  }
  return used;
}

Memory::Totals Memory::totals() const {
  Totals totals;
  const std::shared_lock lock(blocks_lock_);
  for (const auto& [_, block] : device_) {
    if (block->kind == Block::Kind::Opened) {
      ++totals.opened;
    } else {
      ++totals.allocations;
      totals.allocated_bytes += block->bytes;
    }
  }
  for (const auto& [_, block] : host_) {
    ++totals.pinned;
    totals.pinned_bytes += block->bytes;
  }
  return totals;
}

}  // namespace farandole::fakes

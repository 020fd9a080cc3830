#include "transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "rounding.h"

namespace farandole {

namespace {

Result<void> fallocate(const Fd& file, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return {};
  int error_number = 0;
  do {
    error_number =
        ::posix_fallocate(file.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (error_number == EINTR);
  if (error_number == 0) return {};
  return Error::system("Reserving " + std::to_string(bytes) + " bytes of shared memory",
                       error_number);
}

}  // namespace

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      owned_(std::exchange(other.owned_, false)),
      file_(std::move(other.file_)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  if (this != &other) {
    reset();
    bytes_ = std::exchange(other.bytes_, {});
    owned_ = std::exchange(other.owned_, false);
    file_ = std::move(other.file_);
  }
  return *this;
}

ShmSegment::~ShmSegment() { reset(); }

void ShmSegment::reset() noexcept {
  if (owned_) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
  owned_ = false;
  file_.reset();
}

Result<std::size_t> ShmSegment::size_of(const Fd& memfd) {
  struct stat info{};
  if (::fstat(memfd.get(), &info) != 0) return Error::system("fstat of a shared segment", errno);
  return static_cast<std::size_t>(std::max<off_t>(info.st_size, 0));
}

Result<ShmSegment> ShmSegment::map(Fd memfd, std::size_t bytes, std::size_t reserved) {
  const auto size = size_of(memfd);
  if (!size) return size.error();
  if (*size < bytes) {
    Error error;
    error.code = Code::Internal;
    error.message = "A shared segment has " + std::to_string(*size) + " bytes where " +
                    std::to_string(bytes) +
                    " are needed. Do all ranks of this host run the same version?";
    return error;
  }
  reserved = std::min(reserved, bytes);
  if (auto done = fallocate(memfd, 0, reserved); !done) return std::move(done).error();
  // Keeps any rank from shrinking the file, which others have mapped. Not every kernel and sandbox
  // supports this, so the result is ignored.
  (void)::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  void* const address = ::mmap(nullptr, bytes, kAccess, MAP_SHARED, memfd.get(), 0);
  if (address == MAP_FAILED) return Error::system("Mapping a shared segment", errno);
  ShmSegment segment({static_cast<std::byte*>(address), bytes}, true);
  // Maps the reserved part once more, with MAP_POPULATE, so that the system touches its pages.
  if (reserved != 0 && ::mmap(address, reserved, kAccess, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                              memfd.get(), 0) == MAP_FAILED) {
    return Error::system("Mapping a shared segment", errno);
  }
  // A forked child must not have the mapping, so that it cannot write to it by accident.
  if (::madvise(address, bytes, MADV_DONTFORK) != 0) {
    return Error::system("madvise(MADV_DONTFORK) of a shared segment", errno);
  }
  segment.file_ = std::move(memfd);
  return segment;
}

Result<void> ShmSegment::reserve(std::size_t offset, std::size_t bytes) {
  if (!owned_) return {};  // memory of another owner is always there
  if (!file_ || offset > bytes_.size() || bytes > bytes_.size() - offset) {
    Error error;
    error.message = "A shared segment cannot get memory for that part of it";
    return error;
  }
  return fallocate(file_, offset, bytes);
}

ShmSegment ShmSegment::share(std::span<std::byte> memory) noexcept { return {memory, false}; }

namespace {

constexpr std::size_t kAlignment = 64;
/// Memory is reserved in steps of this size: one system call for many small tensors.
constexpr std::size_t kStep = std::size_t{4} << 20;

constexpr int kAccess = PROT_READ | PROT_WRITE;

Error no_memory(std::size_t bytes, std::string_view why) {
  return {.code = Code::Unsupported,
          .message =
              std::to_string(bytes) + " bytes of shared memory for a tensor: " + std::string(why)};
}

}  // namespace

ShmHeap::ShmHeap(std::span<std::byte> memory) noexcept
    : extent_{0, memory.size()}, base_(memory.data()), reserved_(memory.size()) {}

ShmHeap::~ShmHeap() {
  if (owned_) ::munmap(base_.load(), extent_.bytes);
}

Result<std::byte*> ShmHeap::map() {
  if (std::byte* const base = base_.load(std::memory_order_acquire)) return base;
  if (!file_ || extent_.bytes == 0) return no_memory(0, "this rank shares no memory");
  void* const address = ::mmap(nullptr, extent_.bytes, kAccess, MAP_SHARED | MAP_NORESERVE,
                               file_.get(), static_cast<off_t>(extent_.offset));
  if (address == MAP_FAILED) {
    return Error::system("Mapping " + std::to_string(extent_.bytes) +
                             " bytes of address space for tensors in shared memory (limited by "
                             "`ulimit -v`? HOROVOD_SHARED_GRADIENTS=0 does without)",
                         errno);
  }
  // The mapping is not inherited. A child that had it would see later writes of the parent and of
  // other ranks, and to copy gigabytes for each worker of a data loader is too expensive.
  if (::madvise(address, extent_.bytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    ::munmap(address, extent_.bytes);
    return Error::system("madvise(MADV_DONTFORK) of memory for tensors", error);
  }
  owned_ = true;
  base_.store(static_cast<std::byte*>(address), std::memory_order_release);
  return static_cast<std::byte*>(address);
}

Result<std::byte*> ShmHeap::extend(std::size_t bytes) {
  const Lock lock(mutex_);
  auto base = map();
  if (!base) return base;
  const std::size_t wanted = round_up(std::max(bytes, std::size_t{1}), kAlignment);
  if (wanted > extent_.bytes - used_) return no_memory(bytes, "the heap is full");
  if (used_ + wanted > reserved_) {
    const std::size_t end = std::min(extent_.bytes, round_up(used_ + wanted, kStep));
    int error = 0;
    do {
      error = ::posix_fallocate(file_.get(), static_cast<off_t>(extent_.offset + reserved_),
                                static_cast<off_t>(end - reserved_));
    } while (error == EINTR);
    if (error != 0) return Error::system("Reserving shared memory for a tensor", error);
    reserved_ = end;
  }
  std::byte* const data = *base + used_;
  used_ += wanted;
  return data;
}

std::optional<std::uint64_t> ShmHeap::find(const std::byte* data,
                                           std::size_t bytes) const noexcept {
  const std::byte* const base = base_.load(std::memory_order_acquire);
  if (base == nullptr || data < base) return std::nullopt;
  const auto offset = static_cast<std::size_t>(data - base);
  if (offset > extent_.bytes || bytes > extent_.bytes - offset) return std::nullopt;
  return offset;
}

Result<std::byte*> ShmHeap::at(std::uint64_t offset, std::size_t bytes) {
  std::byte* base = base_.load(std::memory_order_acquire);
  if (base == nullptr) {
    const Lock lock(mutex_);
    auto mapped = map();
    if (!mapped) return mapped;
    base = *mapped;
  }
  if (offset > extent_.bytes || bytes > extent_.bytes - offset) {
    return Error{.message = "A rank named a place that is not in its shared memory"};
  }
  return base + offset;
}

}  // namespace farandole

#include "transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

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

}  // namespace farandole

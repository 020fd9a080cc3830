#include "transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace rueda {

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), owned_(std::exchange(other.owned_, false)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  if (this != &other) {
    reset();
    bytes_ = std::exchange(other.bytes_, {});
    owned_ = std::exchange(other.owned_, false);
  }
  return *this;
}

ShmSegment::~ShmSegment() { reset(); }

void ShmSegment::reset() noexcept {
  if (owned_) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
  owned_ = false;
}

Result<ShmSegment> ShmSegment::map(Fd memfd, std::size_t bytes) {
  struct stat info{};
  if (::fstat(memfd.get(), &info) != 0) return Error::system("fstat of a shared segment", errno);
  if (info.st_size < 0 || static_cast<std::size_t>(info.st_size) < bytes) {
    Error error;
    error.code = Code::Internal;
    error.message = "A shared segment has " + std::to_string(info.st_size) + " bytes where " +
                    std::to_string(bytes) +
                    " are needed. Do all ranks of this host run the same version?";
    return error;
  }
  int reserved = 0;
  do {
    reserved = ::posix_fallocate(memfd.get(), 0, static_cast<off_t>(bytes));
  } while (reserved == EINTR);
  if (reserved != 0) {
    return Error::system("Reserving " + std::to_string(bytes) + " bytes of shared memory",
                         reserved);
  }
  // Nobody may take back what the others have mapped. Not every kernel and sandbox can do that.
  (void)::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  void* const address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memfd.get(), 0);
  if (address == MAP_FAILED) return Error::system("Mapping a shared segment", errno);
  ShmSegment segment({static_cast<std::byte*>(address), bytes}, true);
  // A child of fork() must not take part, not even by accident.
  if (::madvise(address, bytes, MADV_DONTFORK) != 0) {
    return Error::system("madvise(MADV_DONTFORK) of a shared segment", errno);
  }
  return segment;
}

ShmSegment ShmSegment::share(std::span<std::byte> memory) noexcept { return {memory, false}; }

}  // namespace rueda

#include "nccl/world.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <ctime>

#include "fake_nccl.h"
#include "faults.h"

namespace farandole::fakes {
namespace {

constexpr std::uint64_t kMagic = 0x4E43434C46414B45U;
constexpr std::size_t kPage = 4096;

/// A member that has joined, by number of its rank.
struct Member {
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint64_t> meetings;
  Description description;
  std::int64_t process;
  std::array<char, 32> device;
};

}  // namespace

struct World::Shared {
  std::atomic<std::uint32_t> changes;
  std::atomic<std::int32_t> size;     ///< as the first rank said
  std::atomic<std::int32_t> refused;  ///< a result of NCCL, which all ranks get
  std::atomic<std::uint32_t> closed;  ///< the maker's descriptor is
  std::array<Member, kMostRanks> members;
  alignas(kPage) std::byte shown[kMostRanks][kChunk];
  Mailbox mailboxes[kMostRanks][kMostRanks];
};

bool World::make(WorldId& id) {
  const int file = ::memfd_create("fake NCCL", MFD_CLOEXEC);
  if (file < 0) return false;
  if (::ftruncate(file, sizeof(Shared)) != 0) {
    ::close(file);
    return false;
  }
  id = {.magic = kMagic, .process = ::getpid(), .descriptor = file};
  return true;
}

std::shared_ptr<World> World::open(const WorldId& id, int rank, int size,
                                   const std::atomic<bool>& aborted) {
  if (id.magic != kMagic || size > kMostRanks) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.descriptor);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat facts{};
  // The maker has closed it once all had joined: then the number may be that of another file.
  if (file < 0 || ::fstat(file, &facts) != 0 || facts.st_size != off_t{sizeof(Shared)}) {
    if (file >= 0) ::close(file);
    return nullptr;
  }
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<World>(new World(static_cast<Shared*>(memory), id, rank, size, aborted));
}

World::World(Shared* shared, const WorldId& id, int rank, int size,
             const std::atomic<bool>& aborted)
    : shared_(shared), id_(id), rank_(rank), size_(size), aborted_(aborted) {}

World::~World() { ::munmap(shared_, sizeof(Shared)); }

void World::changed() const {
  shared_->changes.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &shared_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool World::wait(const std::function<bool()>& ready) const {
  // Whoever aborts wakes this wait; before the world is known to the communicator nobody can.
  const timespec look_again{.tv_sec = 0, .tv_nsec = 50'000'000};
  for (;;) {
    const std::uint32_t seen = shared_->changes.load(std::memory_order_acquire);
    if (aborted_.load(std::memory_order_acquire)) return false;
    if (ready()) return true;
    ::syscall(SYS_futex, &shared_->changes, FUTEX_WAIT, seen, &look_again, nullptr, 0);
  }
}

int World::look_at_members(bool shared_devices) const {
  for (int i = 0; i < size_; ++i) {
    for (int j = 0; j < i; ++j) {
      const Member& one = shared_->members[static_cast<std::size_t>(i)];
      const Member& other = shared_->members[static_cast<std::size_t>(j)];
      if (shared_devices && one.process != other.process) continue;
      if (std::strcmp(one.device.data(), other.device.data()) == 0) return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

int World::join(const std::string& device) {
  std::int32_t first = 0;
  const bool same_size = shared_->size.compare_exchange_strong(first, size_) || first == size_;
  Member& own = shared_->members[static_cast<std::size_t>(rank_)];
  if (!same_size || own.joined.load() != 0) shared_->refused.store(ncclInvalidUsage);
  if (shared_->refused.load() == 0) {
    own.process = ::getpid();
    device.copy(own.device.data(), own.device.size() - 1);
    own.joined.store(1, std::memory_order_release);
  }
  changed();
  const bool came = wait([this] {
    if (shared_->refused.load() != 0) return true;
    for (int i = 0; i < size_; ++i) {
      const Member& member = shared_->members[static_cast<std::size_t>(i)];
      if (member.joined.load(std::memory_order_acquire) == 0) return false;
    }
    return true;
  });
  if (id_.process == ::getpid() && shared_->closed.exchange(1) == 0) {
    ::close(static_cast<int>(id_.descriptor));
  }
  if (!came) return ncclInternalError;
  if (const int refused = shared_->refused.load(); refused != 0) return refused;
  return look_at_members(number_of_environment("FAKE_NCCL_SHARED_DEVICES", 0) != 0);
}

bool World::meet() {
  ++meetings_;
  shared_->members[static_cast<std::size_t>(rank_)].meetings.store(meetings_,
                                                                   std::memory_order_release);
  changed();
  return wait([this] {
    for (int i = 0; i < size_; ++i) {
      const Member& member = shared_->members[static_cast<std::size_t>(i)];
      if (member.meetings.load(std::memory_order_acquire) < meetings_) return false;
    }
    return true;
  });
}

bool World::meet(const Description& description, bool& agree) {
  Member& own = shared_->members[static_cast<std::size_t>(rank_)];
  own.description = description;
  if (!meet()) return false;
  agree = true;
  for (int i = 0; i < size_; ++i) {
    agree &= shared_->members[static_cast<std::size_t>(i)].description == description;
  }
  return meet();  // nobody describes what is next before all have looked
}

std::byte* World::shown(int rank) const noexcept {
  return shared_->shown[static_cast<std::size_t>(rank)];
}

World::Mailbox& World::mailbox(int from, int to) const noexcept {
  return shared_->mailboxes[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

}  // namespace farandole::fakes

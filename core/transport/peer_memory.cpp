#include "transport/peer_memory.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#if defined(FARANDOLE_THREAD_SANITIZED)
// For ranks that are threads: the sanitizer does not see what the kernel reads for another process.
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
#endif

namespace farandole {
namespace {

constexpr std::uint32_t kComplete = 1;

}  // namespace

PeerMemory PeerMemory::own() noexcept {
  PeerMemory memory;
  memory.pid_ = ::getpid();
  memory.self_ = true;
  return memory;
}

PeerMemory PeerMemory::of(int pidfd, int liveness) noexcept {
  // From the kernel, in this process's namespace: 0 if the peer has no number there.
  ucred peer{};
  socklen_t length = sizeof peer;
  if (liveness < 0 || ::getsockopt(liveness, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.pid <= 0) {
    return {};
  }
  if (peer.pid == ::getpid()) return own();
  if (pidfd < 0) return {};
  PeerMemory memory;
  memory.pid_ = peer.pid;
  memory.pidfd_ = pidfd;
  memory.liveness_ = liveness;
  return memory;
}

int PeerMemory::read(std::span<const Part> parts) const noexcept {
  assert(parts.size() <= kParts);
  if (!reachable()) return ESRCH;
  std::array<iovec, kParts> here;
  std::array<iovec, kParts> there;
  std::size_t left = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    here[i] = {parts[i].here, parts[i].bytes};
    there[i] = {reinterpret_cast<void*>(parts[i].there), parts[i].bytes};
    left += parts[i].bytes;
  }
  std::size_t first = 0;  // the first part that is not complete
  while (left > 0) {
    const std::size_t rest = parts.size() - first;
    const ssize_t moved =
        ::process_vm_readv(pid_, here.data() + first, rest, there.data() + first, rest, 0);
    if (moved < 0) return errno;
    if (moved == 0) return EFAULT;
    left -= static_cast<std::size_t>(moved);
    // If it moved fewer bytes than requested, the next call reports why.
    for (auto skip = static_cast<std::size_t>(moved); skip > 0;) {
      const std::size_t now = std::min(skip, here[first].iov_len);
      for (iovec* part : {&here[first], &there[first]}) {
        part->iov_base = static_cast<std::byte*>(part->iov_base) + now;
        part->iov_len -= now;
      }
      skip -= now;
      if (here[first].iov_len == 0) ++first;
    }
  }
#if defined(FARANDOLE_THREAD_SANITIZED)
  // After the read, which proves that the addresses are valid: a peer's word is not trusted.
  for (const Part& part : parts) {
    if (self_) __tsan_read_range(reinterpret_cast<void*>(part.there), part.bytes);
  }
#endif
  return 0;
}

bool PeerMemory::alive() const noexcept {
  if (self_) return true;
  if (!reachable()) return false;
  // The connection also ends if the process executes another program.
  std::array<pollfd, 2> signs{pollfd{.fd = pidfd_, .events = POLLIN, .revents = 0},
                              pollfd{.fd = liveness_, .events = POLLIN, .revents = 0}};
  return ::poll(signs.data(), signs.size(), 0) == 0;
}

Result<MemoryToken> MemoryToken::make() {
  auto number = std::make_unique<std::array<std::uint64_t, 2>>();
  if (::getrandom(number->data(), sizeof *number, 0) != sizeof *number) {
    return Error::system("getrandom", errno);
  }
  return MemoryToken(std::move(number));
}

void MemoryToken::publish(MemoryCard& card) const noexcept {
  card.address = reinterpret_cast<std::uintptr_t>(number_->data());
  card.number = *number_;
  card.state.store(kComplete, std::memory_order_seq_cst);
}

bool proven(const PeerMemory& memory, const MemoryCard& card) noexcept {
  if (!memory.reachable() || card.state.load(std::memory_order_seq_cst) != kComplete) return false;
  std::array<std::uint64_t, 2> found{};
  const PeerMemory::Part part{reinterpret_cast<std::byte*>(found.data()), read_once(card.address),
                              sizeof found};
  return memory.read(std::span(&part, 1)) == 0 && found == card.number && memory.alive();
}

}  // namespace farandole

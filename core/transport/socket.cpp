#include "transport/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace farandole {
namespace {

/// Bytes that one call encrypts or decrypts at most.
constexpr std::size_t kSealedTurn = std::size_t{1} << 20;

msghdr header_of(std::span<const iovec> parts) noexcept {
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(parts.data());  // the system calls do not write to it
  header.msg_iovlen = parts.size();
  return header;
}

std::size_t bytes_of(std::span<const iovec> parts) noexcept {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

/// Errors that mean that the peer, or the network to it, is gone.
bool means_lost(int error_number) noexcept {
  switch (error_number) {
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
      return true;
    default:
      return false;
  }
}

constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which older headers lack

/// How long TCP waits at most before it tries again, when so many probes had no answer.
int longest_wait_s(int probes) noexcept {
  constexpr int kQuickProbes = 4;
  constexpr int kKernels = 120;
  return std::min(kKernels, 1 << std::clamp(probes - kQuickProbes, 0, 7));
}

}  // namespace

Error connection_closed(Rank peer) {
  return Error{.code = Code::PeerLost,
               .message = "connection closed by rank " + std::to_string(peer),
               .peer = peer,
               .loss = Loss::ConnectionEnded};
}

/// Limits the time between retransmissions. TCP doubles it with each loss: after an outage of 8 s
/// nothing arrives for 12.8 s, and a segment that is lost five times takes 6 s, so operations time
/// out if a third of all packets is lost. Sources: tcp(7), TCP_USER_TIMEOUT; the kernel's
/// networking/tcp-thin; TCP_RTO_MAX_MS (Linux 6.15). Older kernels retransmit six times without
/// doubling, if few packets are in flight.
void Socket::keep_trying() noexcept {
  constexpr int kThinLinearTimeouts = 16;
  constexpr int kUserTimeout = 18;
  const auto set = [this](int option, int value) {
    (void)::setsockopt(fd_.get(), IPPROTO_TCP, option, &value,
                       sizeof value);  // not every kernel has these options
  };
  set(kThinLinearTimeouts, 1);
  set(kRtoMaxMs, 1000 * wait_s_);
  set(kUserTimeout,
      15 * 60 *
          1000);  // otherwise the kernel gives up after a count of retries, which come faster now
}

/// Packets that this host drops itself (a firewall, no route) never count as sent. TCP then does
/// not retransmit, it probes, as if the peer had no room, and ends the connection after 15 probes
/// without an answer (tcp_retries2), whatever TCP_USER_TIMEOUT says: 15 s at one a second. So the
/// waits between them grow here, and each call sends what waits instead.
/// Sources: tcp_probe_timer() and tcp_sock_set_nodelay() in the kernel's net/ipv4.
void Socket::persist() noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  const bool probing = info.tcpi_probes > 0 && info.tcpi_unacked == 0;
  if (const int wait_s = longest_wait_s(probing ? info.tcpi_probes : 0);
      std::exchange(wait_s_, wait_s) != wait_s) {
    const int wait_ms = 1000 * wait_s;
    (void)::setsockopt(fd_.get(), IPPROTO_TCP, kRtoMaxMs, &wait_ms, sizeof wait_ms);
  }
  const int on = 1;  // it is on; to set it again sends what waits
  if (probing) (void)::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Result<Socket> Socket::adopt(Fd fd, Rank peer, const SealKeys& keys) {
  const auto fail = [peer](std::string_view what) {
    Error error = Error::system(what, errno);
    error.message += " (socket of rank " + std::to_string(peer) + ")";
    error.peer = peer;
    return error;
  };
  int type = 0;
  socklen_t length = sizeof(type);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0) return fail("getsockopt");
  if (type != SOCK_STREAM) {
    errno = EPROTOTYPE;
    return fail("not a stream socket");
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return fail("fcntl");
  }
  const int on = 1;  // fails on Unix sockets, which delay nothing anyway
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  Socket socket(std::move(fd), peer);
  socket.keep_trying();
  if (keys.protection != Protection::Off) {
    auto seal = Seal::open(keys);
    if (!seal) return socket.describe(std::move(seal).error());
    socket.seal_ = *std::move(seal);
  }
  return socket;
}

Result<std::size_t> Socket::write(std::span<const iovec> parts) {
  return seal_ ? write_sealed(parts) : write_raw(parts);
}

Result<std::size_t> Socket::read(std::span<const iovec> parts) {
  return seal_ ? read_sealed(parts) : read_raw(parts);
}

Result<std::size_t> Socket::write_sealed(std::span<const iovec> parts) {
  const std::size_t given = bytes_of(parts);
  std::size_t taken = 0;
  while (taken < std::min(given, kSealedTurn)) {
    if (seal_->pending().empty()) {
      if (auto begun = seal_->begin(parts, taken); !begun) {
        return describe(std::move(begun).error());
      }
    }
    const auto pending = seal_->pending();
    const iovec part{const_cast<std::byte*>(pending.data()), pending.size()};
    auto sent = write_raw({&part, 1});
    if (!sent) return sent;
    taken += seal_->sent(*sent);
    if (*sent < pending.size()) break;
  }
  return taken;
}

/// Bytes before a wrong record, or before the end of the stream, are read first.
Result<std::size_t> Socket::read_sealed(std::span<const iovec> parts) {
  const std::size_t asked = bytes_of(parts);
  std::size_t got = 0;
  while (got < std::min(asked, kSealedTurn)) {
    got += seal_->take(parts, got);
    if (got == asked || !seal_->plain().empty()) break;
    if (!broken_) {
      auto opened = seal_->unseal();
      if (opened && *opened) continue;
      if (!opened) broken_ = describe(std::move(opened).error());
    }
    if (!broken_) {
      const auto room = seal_->room();
      const iovec part{room.data(), room.size()};
      auto arrived = read_raw({&part, 1});
      if (arrived && *arrived == 0) break;
      if (arrived) {
        seal_->filled(*arrived);
        continue;
      }
      broken_ = std::move(arrived).error();
    }
    if (got == 0) return *broken_;
    break;
  }
  return got;
}

Result<std::size_t> Socket::write_raw(std::span<const iovec> parts) {
  const msghdr header = header_of(parts);
  for (;;) {
    const ssize_t taken = ::sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken >= 0) return static_cast<std::size_t>(taken);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return std::size_t{0};
    if (errno != EINTR) return failure(errno);
  }
}

Result<std::size_t> Socket::read_raw(std::span<const iovec> parts) {
  if (bytes_of(parts) == 0) return std::size_t{0};  // would look like the end of the stream
  msghdr header = header_of(parts);
  for (;;) {
    const ssize_t got = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT);
    if (got > 0) {
      arrived_ += static_cast<std::size_t>(got);
      return static_cast<std::size_t>(got);
    }
    if (got == 0) return failure(0);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    if (errno != EINTR) return failure(errno);
  }
}

bool Socket::holds() const noexcept { return seal_ && (broken_ || seal_->holds()); }

bool Socket::ready(short events) const noexcept {
  if ((events & POLLIN) != 0 && holds()) return true;
  pollfd polled{.fd = fd_.get(), .events = events, .revents = 0};
  return ::poll(&polled, 1, 0) > 0;
}

/// Adds the connection's addresses to the error.
Error Socket::describe(Error error) const {
  std::string where;
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  if (::getpeername(fd_.get(), address, &length) == 0) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* number = nullptr;
    if (address->sa_family == AF_INET) {
      number = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    } else if (address->sa_family == AF_INET6) {
      number = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    }
    if (number != nullptr &&
        ::inet_ntop(address->sa_family, number, text.data(), text.size()) != nullptr) {
      where = " at " + std::string(text.data());
    }
  }
  error.message =
      "connection with rank " + std::to_string(peer_) + where + ": " + std::move(error.message);
  error.peer = peer_;
  return error;
}

Error Socket::failure(int error_number) const {
  if (error_number == 0 || error_number == EPIPE) return connection_closed(peer_);
  if (error_number == ECONNRESET) {
    Error error = connection_closed(peer_);
    error.message += " (connection reset)";
    return error;
  }
  Error error = Error::system("connection to rank " + std::to_string(peer_), error_number);
  error.peer = peer_;
  if (means_lost(error_number)) error.code = Code::PeerLost;
  return error;
}

}  // namespace farandole

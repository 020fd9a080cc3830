#include "transport/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace rueda {
namespace {

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

/// Errors by which the kernel says that the other end, or the way to it, is gone.
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

}  // namespace

Error connection_closed(Rank peer) {
  Error error;
  error.code = Code::PeerLost;
  error.message = "connection closed by rank " + std::to_string(peer);
  error.peer = peer;
  return error;
}

Result<Socket> Socket::adopt(Fd fd, Rank peer) {
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
  return Socket(std::move(fd), peer);
}

Socket::Socket(Socket&& other) noexcept
    : fd_(std::move(other.fd_)), peer_(other.peer_), ended_here_(other.ended_here_.load()) {}

Result<std::size_t> Socket::write(std::span<const iovec> parts) {
  const msghdr header = header_of(parts);
  for (;;) {
    const ssize_t taken = ::sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken >= 0) return static_cast<std::size_t>(taken);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return std::size_t{0};
    if (errno != EINTR) return failure(errno);
  }
}

Result<std::size_t> Socket::read(std::span<const iovec> parts) {
  if (bytes_of(parts) == 0) return std::size_t{0};  // would look like the end of the stream
  msghdr header = header_of(parts);
  for (;;) {
    const ssize_t got = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return failure(0);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    if (errno != EINTR) return failure(errno);
  }
}

bool Socket::ready(short events) const noexcept {
  pollfd polled{.fd = fd_.get(), .events = events, .revents = 0};
  return ::poll(&polled, 1, 0) > 0;
}

void Socket::shutdown() noexcept {
  ended_here_.store(true);
  (void)::shutdown(fd_.get(), SHUT_RDWR);
}

Error Socket::failure(int error_number) const {
  if (ended_here_.load()) {
    Error error;
    error.code = Code::Shutdown;
    error.message = "the connection to rank " + std::to_string(peer_) + " was ended by this rank";
    error.peer = peer_;
    return error;
  }
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

}  // namespace rueda

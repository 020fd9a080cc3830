/// A connected, non-blocking stream socket to one rank.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "result.h"
#include "transport/fd.h"
#include "transport/seal.h"

namespace farandole {

/// Reads and writes as many bytes as possible without blocking. Used by one thread at a time.
/// Errors carry the rank at the other end.
class Socket {
 public:
  /// Takes a connected stream socket (TCP or Unix) to `peer`; makes it non-blocking and
  /// close-on-exec and turns off TCP's delay of small segments. Lost packets are sent again within
  /// a second, as far as the kernel supports that, and TCP gives up after 15 minutes at the
  /// earliest. The descriptor is closed if this fails. With keys, the stream is sealed (seal.h).
  [[nodiscard]] static Result<Socket> adopt(Fd fd, Rank peer, const SealKeys& keys = {});

  Socket(Socket&&) noexcept = default;
  Socket& operator=(Socket&&) = delete;

  /// Writes from the parts in order. Returns the bytes taken; 0: no room now. The next call must
  /// begin with the bytes that were not taken, and bring no fewer: some of them may have been
  /// sent already.
  [[nodiscard]] Result<std::size_t> write(std::span<const iovec> parts);
  /// Reads into the parts in order. Returns the bytes read; 0: nothing there now.
  /// The end of the stream is PeerLost: "connection closed by rank N".
  [[nodiscard]] Result<std::size_t> read(std::span<const iovec> parts);

  /// True if one of `events` (POLLIN, POLLOUT) or an error is pending. Makes one system call at
  /// most.
  ///
  /// With keys, decrypted bytes may wait here, which poll() does not see. So read() must have
  /// returned 0 before a sleep in poll().
  [[nodiscard]] bool ready(short events) const noexcept;
  /// Whether read() gives something, or fails, without a question to the kernel.
  [[nodiscard]] bool holds() const noexcept;

  /// Keeps a TCP connection through a time in which this host cannot send. Called about once a
  /// second. Without that the kernel ends it after 15 s.
  void persist() noexcept;

  /// How many bytes have arrived so far; with keys also those of a record that is not whole yet, of
  /// which read() returns nothing.
  [[nodiscard]] std::size_t arrived() const noexcept { return arrived_; }

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] Rank peer() const noexcept { return peer_; }

 private:
  Socket(Fd fd, Rank peer) noexcept : fd_(std::move(fd)), peer_(peer) {}
  void keep_trying() noexcept;
  [[nodiscard]] Error failure(int error_number) const;
  [[nodiscard]] Result<std::size_t> write_raw(std::span<const iovec> parts);
  [[nodiscard]] Result<std::size_t> read_raw(std::span<const iovec> parts);
  [[nodiscard]] Result<std::size_t> write_sealed(std::span<const iovec> parts);
  [[nodiscard]] Result<std::size_t> read_sealed(std::span<const iovec> parts);
  [[nodiscard]] Error describe(Error error) const;

  Fd fd_;
  Rank peer_;
  std::unique_ptr<Seal> seal_;  // null: the stream is not sealed
  std::size_t arrived_ = 0;
  int wait_s_ = 1;               // at most, before TCP tries again
  std::optional<Error> broken_;  // the error to return when all bytes before it have been read
};

/// "connection closed by rank 3" and the like.
[[nodiscard]] Error connection_closed(Rank peer);

}  // namespace farandole

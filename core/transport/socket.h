/// A connected stream socket to one rank that never blocks.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "result.h"
#include "transport/fd.h"
#include "transport/seal.h"

namespace rueda {

/// Moves as many bytes as there is room for, or as are there. Used by one thread at a time, except
/// for shutdown(). Errors carry the rank at the other end.
class Socket {
 public:
  /// Takes a connected stream socket (TCP or Unix) to `peer`; makes it non-blocking and
  /// close-on-exec and turns off TCP's delay of small segments. What is lost on the way is sent
  /// again within a second, however often, as far as this kernel can do that, and TCP gives up
  /// after 15 minutes at the earliest. The descriptor is closed if this fails. With keys, what goes
  /// over it is protected from whoever is in between.
  [[nodiscard]] static Result<Socket> adopt(Fd fd, Rank peer, const SealKeys& keys = {});

  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&&) = delete;

  /// Writes from the parts in order. Returns the bytes taken; 0: no room now. What was not taken
  /// comes first again in the next call, with no less behind it: a part of it may have gone
  /// already.
  [[nodiscard]] Result<std::size_t> write(std::span<const iovec> parts);
  /// Reads into the parts in order. Returns the bytes read; 0: nothing there now.
  /// The end of the stream is PeerLost: "connection closed by rank N".
  [[nodiscard]] Result<std::size_t> read(std::span<const iovec> parts);

  /// True if `events` (POLLIN, POLLOUT) or an error is pending. One system call at most.
  ///
  /// With keys, bytes that poll() does not know of may wait here: until read() has returned 0, a
  /// sleep in poll() may miss them.
  [[nodiscard]] bool ready(short events) const noexcept;

  /// Ends the connection in both directions: the peer sees its end, whoever sleeps in poll() wakes,
  /// later reads and writes fail with Shutdown. Any thread.
  void shutdown() noexcept;

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
  std::atomic<bool> ended_here_{false};  // so that our own shutdown() is not blamed on the peer
  std::unique_ptr<Seal> seal_;           // null: not protected
  std::optional<Error> broken_;          // why nothing more can be read, after what was good
};

/// "connection closed by rank 3" and the like.
[[nodiscard]] Error connection_closed(Rank peer);

}  // namespace rueda

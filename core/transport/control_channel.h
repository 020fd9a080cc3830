/// Ordered, reliable messages between two neighbours in the control tree: over a stream socket, or
/// through rings in the segments of a host.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "result.h"
#include "transport/byte_ring.h"
#include "transport/doorbell.h"
#include "transport/shm_layout.h"
#include "transport/socket.h"

namespace farandole {

/// How many bytes may wait at one end. A rank that is stopped reads nothing, and others may go on
/// in process sets that it is not in. Their messages to it must not fill the memory.
inline constexpr std::size_t kMaxControlBacklog = std::size_t{64} << 20;

[[nodiscard]] inline Error takes_nothing(Rank peer) {
  return {.code = Code::PeerLost,
          .message = "rank " + std::to_string(peer) + " does not take its control messages: " +
                     std::to_string(kMaxControlBacklog >> 20) + " MiB of them wait",
          .peer = peer};
}

/// One end. Used by the holder of the progress lock only, so by one thread at a time.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  /// Queues one message (1 B … 16 MiB). Never blocks: bytes without room are kept for a later
  /// flush(). Beyond kMaxControlBacklog the peer counts as lost.
  virtual Result<void> send(std::span<const std::byte> message) = 0;

  /// Sends queued messages as far as there is room, and wakes the peer if it sleeps.
  virtual Result<void> flush() = 0;

  /// send() and flush().
  Result<void> post(std::span<const std::byte> message) {
    if (auto sent = send(message); !sent) return sent;
    return flush();
  }

  /// The next message, or nothing yet. The bytes stay valid until the next call. An error means
  /// that the peer closed the channel or violated the protocol; messages before that were
  /// delivered.
  virtual Result<std::optional<std::span<const std::byte>>> receive() = 0;

  /// True if receive() may have a message, or if there may be room now for queued messages.
  [[nodiscard]] virtual bool ready() const = 0;

  /// True while queued messages wait for room.
  [[nodiscard]] virtual bool congested() const = 0;
};

/// Control messages over a stream socket: four bytes of length (little endian), then the message.
///
/// A limit against hostile or corrupt lengths. It is not a buffer size: buffers grow with the bytes
/// that have arrived.
inline constexpr std::size_t kMaxControlMessage = std::size_t{16} << 20;

class SocketChannel final : public ControlChannel {
 public:
  explicit SocketChannel(Socket socket) : socket_(std::move(socket)) {}

  Result<void> send(std::span<const std::byte> message) override;
  Result<void> flush() override;
  Result<std::optional<std::span<const std::byte>>> receive() override;
  [[nodiscard]] bool ready() const override;
  /// ready(), as far as it is known without a question to the kernel.
  [[nodiscard]] bool has_message() const;
  [[nodiscard]] bool congested() const override { return sent_ < outgoing_.size(); }

  /// See Socket::persist().
  void persist() noexcept { socket_.persist(); }

  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  /// The poll() entry for a sleeping rank: readable, and writable while congested().
  [[nodiscard]] pollfd wants() const noexcept;

 private:
  /// The first message in incoming_, if it is complete.
  [[nodiscard]] Result<std::optional<std::span<const std::byte>>> next_message();

  Socket socket_;
  std::vector<std::byte> outgoing_;  // frames; [sent_, size) still has to go
  std::size_t sent_ = 0;
  std::vector<std::byte> incoming_;  // [taken_, filled_) has arrived and was not handed out
  std::size_t taken_ = 0;
  std::size_t filled_ = 0;
  std::optional<Error> broken_;  // why nothing more will arrive
};

/// Control messages between two ranks of a host, through rings in their segments.
///
/// A message in the ring is its length (32 bits) and its bytes, written piece by piece as there is
/// room.
class ShmChannel final : public ControlChannel {
 public:
  /// This rank's end of an edge of the control tree.
  struct Edge {
    ShmView own;          ///< this rank's segment
    int own_index = 0;    ///< local index of this rank
    ShmView peer;         ///< the other rank's segment
    int peer_index = 0;   ///< its local index
    Rank peer_rank = -1;  ///< its global rank, for errors
    Doorbell bell;        ///< its bell
  };

  explicit ShmChannel(const Edge& edge);
  /// Tells the peer that nothing will follow. The segments must still be mapped.
  ~ShmChannel() override;
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  Result<void> send(std::span<const std::byte> message) override;
  Result<void> flush() override;
  Result<std::optional<std::span<const std::byte>>> receive() override;
  [[nodiscard]] bool ready() const override;
  [[nodiscard]] bool congested() const override { return !queue_.empty(); }

 private:
  [[nodiscard]] Error broken(const Error& error) const;

  Rank peer_rank_;
  Doorbell bell_;
  RingWriter out_;
  RingReader in_;

  std::deque<std::vector<std::byte>> queue_;  // messages with their lengths, which found no room
  std::size_t queued_bytes_ = 0;              // of all of them
  std::size_t front_sent_ = 0;                // bytes of the first of them that are in the ring

  bool unannounced_ = false;  // something was published since the bell was last rung

  std::array<std::byte, 4> length_{};  // of the message being received
  std::size_t received_ = 0;           // bytes of length and message so far
  std::vector<std::byte> message_;  // a copy, because the peer could change the ring after a check
};

}  // namespace farandole

/// Ordered, reliable messages between two neighbours in the control tree.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "result.h"

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

}  // namespace farandole

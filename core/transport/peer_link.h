/// Messages of known length between two ranks, over one stream socket.
///
/// Both ends post the same transfers in the same order, so nothing has to be negotiated; a header
/// (number and length) before each message only guards against ends that are out of step.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "transport/socket.h"

namespace rueda {

class PeerLink {
 public:
  /// Counts the messages of one direction from 0.
  using Ticket = std::uint64_t;

  explicit PeerLink(Socket socket) : socket_(std::move(socket)) {}

  /// Queues a transfer. The bytes stay valid until it is complete. Several may be outstanding.
  Ticket post_send(std::span<const std::byte> data);
  Ticket post_recv(std::span<std::byte> data);
  [[nodiscard]] bool sent(Ticket ticket) const noexcept { return ticket < outgoing_.completed; }
  [[nodiscard]] bool received(Ticket ticket) const noexcept { return ticket < incoming_.completed; }

  /// Moves bytes of that direction, about a chunk at most. True if any moved.
  /// An error is final for that direction; what was complete before stays complete.
  [[nodiscard]] Result<bool> pump_out();
  [[nodiscard]] Result<bool> pump_in();

  /// Whoever posted these transfers has gone, its memory too: the link must not touch it any more,
  /// and cannot go on in step. No effect on complete transfers.
  void forget_send(Ticket ticket) { forget(outgoing_, ticket); }
  void forget_recv(Ticket ticket) { forget(incoming_, ticket); }

  /// What to sleep for: readable if a receive, writable if a send is outstanding. fd -1: nothing.
  [[nodiscard]] pollfd wants() const noexcept;
  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  [[nodiscard]] Rank peer() const noexcept { return socket_.peer(); }
  /// See Socket::shutdown(). Any thread.
  void shutdown() noexcept { socket_.shutdown(); }

 private:
  static constexpr std::size_t kHeaderBytes = 16;
  struct Transfer {
    std::array<std::byte, kHeaderBytes> header{};
    std::byte* data = nullptr;  // not written through for sends
    std::size_t bytes = 0;
  };
  struct Direction {
    std::deque<Transfer> queue;   // a deque: headers keep their addresses; the front is under way
    std::size_t front_moved = 0;  // bytes of the front, header included, that are done
    Ticket posted = 0;
    Ticket completed = 0;
    std::optional<Error> broken;
  };

  [[nodiscard]] Result<bool> pump(Direction& direction, bool incoming);
  /// Accounts for `bytes` moved; incoming headers are checked against what was posted.
  [[nodiscard]] Result<void> advance(Direction& direction, std::size_t bytes, bool incoming);
  [[nodiscard]] Result<void> check_header(const Transfer& transfer) const;
  void break_off(Direction& direction, Error reason);
  void forget(Direction& direction, Ticket ticket);

  Socket socket_;
  Direction outgoing_;
  Direction incoming_;
};

}  // namespace rueda

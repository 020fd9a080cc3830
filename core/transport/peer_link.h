/// Messages of known length between two ranks, over one stream socket.
///
/// Both ends post the same transfers in the same order, so nothing has to be negotiated; a header
/// (number, length and operation) before each message only guards against ends that are out of
/// step. *Notes* are short and go between messages whenever their sender likes: nobody posts a
/// receive for them.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "transport/operation_tag.h"
#include "transport/socket.h"

namespace rueda {

/// Bytes of a note at most.
inline constexpr std::size_t kMaxNote = std::size_t{72} << 10;

/// Who gets the notes of a link.
class NoteSink {
 public:
  virtual ~NoteSink() = default;
  /// An error breaks the link: it makes no sense.
  [[nodiscard]] virtual Result<void> note(Rank from, std::span<const std::byte> body) = 0;
};

class PeerLink {
 public:
  /// Counts the messages of one direction from 0.
  using Ticket = std::uint64_t;

  /// `operation`: which one a transfer belongs to that is posted now; outlives the link. Null: all
  /// belong to one.
  explicit PeerLink(Socket socket, const OperationTag* operation = nullptr)
      : socket_(std::move(socket)), operation_(operation) {}

  /// Queues a transfer. The bytes stay valid until it is complete. Several may be outstanding.
  Ticket post_send(std::span<const std::byte> data);
  Ticket post_recv(std::span<std::byte> data);
  [[nodiscard]] bool sent(Ticket ticket) const noexcept { return ticket < outgoing_.completed; }
  [[nodiscard]] bool received(Ticket ticket) const noexcept { return ticket < incoming_.completed; }

  /// Moves bytes of that direction, about a chunk at most. True if any moved.
  /// An error is final for that direction; what was complete before stays complete.
  /// Messages that nobody has asked for stay where they are; notes in front of them are delivered.
  [[nodiscard]] Result<bool> pump_out();
  [[nodiscard]] Result<bool> pump_in();

  /// Whoever posted these transfers has gone, its memory too: the link must not touch it any more,
  /// and cannot go on in step. No effect on complete transfers.
  void forget_send(Ticket ticket) { forget(outgoing_, ticket); }
  void forget_recv(Ticket ticket) { forget(incoming_, ticket); }

  /// Who gets the notes from now on; null: a note is an error. Outlives the link.
  void deliver_notes_to(NoteSink* sink) noexcept { sink_ = sink; }
  /// Queues a note, kMaxNote at most. The bytes stay valid until the peer has answered.
  void post_note(std::span<const std::byte> body);
  /// Whether notes are awaited although no message is.
  void listen(bool on) noexcept { listening_ = on; }

  /// The peer has begun a message that nobody has asked for yet; what follows it, notes too, comes
  /// after it only.
  [[nodiscard]] bool ahead() const noexcept { return incoming_.unasked; }
  /// Something that was posted has not been sent.
  [[nodiscard]] bool sending() const noexcept { return !outgoing_.queue.empty(); }
  /// What to sleep for: readable if something is awaited, writable if a send is outstanding.
  /// fd -1: nothing.
  [[nodiscard]] pollfd wants() const noexcept;
  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  [[nodiscard]] Rank peer() const noexcept { return socket_.peer(); }
  /// See Socket::shutdown(). Any thread.
  void shutdown() noexcept { socket_.shutdown(); }

 private:
  static constexpr std::size_t kHeaderBytes = 24;
  using Header = std::array<std::byte, kHeaderBytes>;
  struct Direction {
    Ticket posted = 0;
    Ticket completed = 0;
    std::optional<Error> broken;
  };
  struct Sending {
    Header header{};
    std::byte* data = nullptr;  // not written through
    std::size_t bytes = 0;
    bool note = false;
  };
  struct Receiving {
    std::span<std::byte> rest;  // what has not arrived yet
    OperationTag operation = 0;
  };
  struct Outgoing : Direction {
    std::deque<Sending> queue;  // a deque: headers keep their addresses; the front is under way
    std::size_t moved = 0;      // bytes of the front, header included
    std::uint32_t notes = 0;
  };
  struct Incoming : Direction {
    std::deque<Receiving> queue;
    bool inside = false;   // the header of the front has been read
    bool unasked = false;  // a message has begun that nobody has asked for
    std::uint32_t notes = 0;
    std::vector<std::byte> inbox;  // [taken, filled) has been read and not been looked at
    std::size_t taken = 0;
    std::size_t filled = 0;
  };

  void account(std::size_t written);
  [[nodiscard]] bool awaits() const noexcept {
    return (!incoming_.queue.empty() || listening_) && !incoming_.unasked && !incoming_.broken;
  }
  [[nodiscard]] Result<std::size_t> read_some(std::size_t& asked);
  [[nodiscard]] Result<void> digest();
  [[nodiscard]] Result<bool> digest_header();
  void deliver();
  [[nodiscard]] Error out_of_step(std::string_view got) const;
  void break_off(Direction& direction, Error reason);
  void forget(Direction& direction, Ticket ticket);

  [[nodiscard]] OperationTag operation() const noexcept {
    return operation_ == nullptr ? 0 : *operation_;
  }

  Socket socket_;
  const OperationTag* operation_;
  Outgoing outgoing_;
  Incoming incoming_;
  NoteSink* sink_ = nullptr;
  bool listening_ = false;
};

}  // namespace rueda

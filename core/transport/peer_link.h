/// Messages of known length between two ranks, over one stream socket.
///
/// Both ends post the same transfers in the same order, so nothing has to be negotiated. A header
/// (number, length and operation) before each message detects ends that are out of step. *Notes*
/// are short messages that may be sent at any time, between other messages. No receive is posted
/// for them.
///
/// A link may be made before its connection. Transfers are posted as on any link, and wait for it.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/operation_tag.h"
#include "transport/socket.h"

namespace farandole {

/// The largest note, in bytes.
inline constexpr std::size_t kMaxNote = std::size_t{72} << 10;

/// Receives the notes of a link.
class NoteSink {
 public:
  virtual ~NoteSink() = default;
  /// A note arrived on that subject. An error breaks the link: the note was malformed.
  [[nodiscard]] virtual Result<void> note(Rank from, std::uint64_t subject,
                                          std::span<const std::byte> body) = 0;
};

/// Is told that a link needs its connection.
class LinkOpener {
 public:
  virtual ~LinkOpener() = default;
  /// The link to `peer` has something to move, or to hear. Called once for each link.
  virtual void want(Rank peer) noexcept = 0;
};

class PeerLink {
 public:
  /// Counts the messages of one direction from 0.
  using Ticket = std::uint64_t;

  /// `operation`: the operation of transfers that are posted now; outlives the link. Null: all
  /// transfers belong to one operation.
  explicit PeerLink(Socket socket, const OperationTag* operation = nullptr)
      : peer_(socket.peer()), socket_(std::move(socket)), operation_(operation) {}
  /// Without a connection as yet. `opener` outlives the link.
  PeerLink(Rank peer, LinkOpener& opener, const OperationTag* operation)
      : peer_(peer), opener_(&opener), operation_(operation) {}

  /// The connection is there. Once, of a link that had none.
  void connect(Socket socket) noexcept { socket_.emplace(std::move(socket)); }
  [[nodiscard]] bool connected() const noexcept { return socket_.has_value(); }
  /// There will be no connection: all that waits for it fails, and what is posted later.
  void give_up(const Error& reason);

  /// Queues a transfer. The bytes stay valid until it is complete. Several may be outstanding.
  Ticket post_send(std::span<const std::byte> data);
  Ticket post_recv(std::span<std::byte> data);
  [[nodiscard]] bool sent(Ticket ticket) const noexcept { return ticket < outgoing_.completed; }
  [[nodiscard]] bool received(Ticket ticket) const noexcept { return ticket < incoming_.completed; }

  /// Moves bytes in that direction, about a chunk at most. True if any moved, be it into a record
  /// that is not whole yet: over a bad link one may take longer than an operation may stand still.
  /// An error is final for that direction; transfers that were complete stay complete. Messages for
  /// which no receive was posted stay in the socket; notes in front of them are delivered.
  [[nodiscard]] Result<bool> pump_out();
  [[nodiscard]] Result<bool> pump_in();

  /// The memory of these transfers is gone, so the link must not touch it any more, and can no
  /// longer be used. No effect on complete transfers.
  void forget_send(Ticket ticket) { forget(outgoing_, ticket); }
  void forget_recv(Ticket ticket) { forget(incoming_, ticket); }

  /// The receiver of notes from now on; null: a note is an error. Outlives the link.
  void deliver_notes_to(NoteSink* sink) noexcept {
    sink_ = sink;
    want();  // both ends do: the one that has a note to send may not be the one that dials
  }
  /// Queues a note, kMaxNote at most. The bytes stay valid until it has gone or keep_notes().
  void post_note(std::uint64_t subject, std::span<const std::byte> body);
  /// Copies the notes that are queued.
  void keep_notes();
  /// Somebody more, or fewer, wants notes while no receive is posted.
  void listen(bool more) noexcept { listeners_ += more ? 1 : -1; }

  /// See Socket::persist().
  void persist() noexcept {
    if (socket_) socket_->persist();
  }

  /// True if the peer has begun a message for which no receive was posted yet. Notes behind it
  /// arrive only after it.
  [[nodiscard]] bool ahead() const noexcept { return incoming_.unasked; }
  /// True if something that was posted has not been sent.
  [[nodiscard]] bool sending() const noexcept { return !outgoing_.queue.empty(); }
  /// The poll() entry for a sleeping rank: readable if a receive or a note is awaited, writable if
  /// a send is outstanding. fd -1: neither, or there is no connection as yet.
  [[nodiscard]] pollfd wants() const noexcept;
  /// -1 without a connection.
  [[nodiscard]] int fd() const noexcept { return socket_ ? socket_->fd() : -1; }
  [[nodiscard]] Rank peer() const noexcept { return peer_; }

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
    std::byte* data = nullptr;  // never written to
    std::size_t bytes = 0;
    bool note = false;
    std::vector<std::byte> kept;  // `data`, if the link has its own copy
  };
  struct Receiving {
    std::span<std::byte> rest;  // the part that has not arrived yet
    OperationTag operation = 0;
  };
  struct Outgoing : Direction {
    std::deque<Sending>
        queue;  // a deque, so that headers keep their addresses; the front is being sent
    std::size_t moved = 0;  // bytes of the front, header included
    std::uint32_t notes = 0;
  };
  struct Incoming : Direction {
    std::deque<Receiving> queue;
    bool inside = false;   // the header of the front has been read
    bool unasked = false;  // a message has begun for which no receive was posted
    std::uint32_t notes = 0;
    std::vector<std::byte> inbox;  // [taken, filled) was read from the socket and not handled yet
    std::size_t taken = 0;
    std::size_t filled = 0;
  };

  void want() noexcept {
    if (!socket_ && opener_ != nullptr) std::exchange(opener_, nullptr)->want(peer_);
  }
  void account(std::size_t written);
  [[nodiscard]] bool awaits() const noexcept {
    return (!incoming_.queue.empty() || listeners_ > 0) && !incoming_.unasked && !incoming_.broken;
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

  Rank peer_;
  std::optional<Socket> socket_;  // none: it is not connected as yet
  LinkOpener* opener_ = nullptr;  // null: it was asked, or has nothing to do
  const OperationTag* operation_;
  Outgoing outgoing_;
  Incoming incoming_;
  NoteSink* sink_ = nullptr;
  int listeners_ = 0;
};

}  // namespace farandole

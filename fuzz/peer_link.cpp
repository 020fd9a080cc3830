/// The stream of data between two ranks: headers and what they announce.

#include "transport/peer_link.h"

#include <sys/socket.h>

#include <array>
#include <memory>

#include "target.h"

namespace farandole::fuzz {
namespace {

constexpr std::size_t kMost = 2048;

/// Remembers how much it was told.
struct Listener final : NoteSink {
  std::size_t bytes = 0;
  Result<void> note(Rank, std::uint64_t, std::span<const std::byte> body) override {
    require(body.size() <= kMaxNote, "notes are short");
    for (const std::byte byte : body) bytes += static_cast<std::size_t>(byte);
    return {};
  }
};

/// First whether notes are awaited. Receives that are posted, each a byte pair of length; 0xFF ends
/// them. Then what arrives.
void run(std::span<const std::byte> input) {
  Script script(input);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return;
  Fd writer(ends[0]);
  auto socket = Socket::adopt(Fd(ends[1]), 7);
  require(static_cast<bool>(socket), "a socket pair can be adopted");
  const OperationTag operation = 0;
  PeerLink link(std::move(*socket), &operation);
  Listener listener;
  if ((script.byte() & 1) != 0) {
    link.deliver_notes_to(&listener);
    link.listen(true);
  }

  // Memory of exactly that size each: a byte too many is seen by the address sanitizer.
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<PeerLink::Ticket> tickets;
  for (std::uint8_t high = script.byte(); high != 0xFF && !script.empty() && tickets.size() < 16;
       high = script.byte()) {
    const std::size_t bytes = (std::size_t{high} << 8 | script.byte()) % kMost;
    memory.push_back(std::make_unique<std::byte[]>(bytes));
    tickets.push_back(link.post_recv({memory.back().get(), bytes}));
  }
  bool broken = false;
  while (!script.empty() && !broken) {
    const auto part = script.piece(512);
    const ssize_t sent =
        ::send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(part.size())) break;  // nobody reads what was not asked for
    for (;;) {
      const auto moved = link.pump_in();
      broken = !moved;
      if (broken || !*moved) break;
    }
  }
  bool before = true;
  for (const auto ticket : tickets) {
    const bool complete = link.received(ticket);
    require(before || !complete, "messages complete in their order");
    before = complete;
  }
  for (const auto ticket : tickets) link.forget_recv(ticket);
}

std::vector<Bytes> seeds() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return {};
  Fd reader(ends[1]);
  auto socket = Socket::adopt(Fd(ends[0]), 7);
  if (!socket) return {};
  PeerLink link(std::move(*socket));
  const Bytes data(300, std::byte{5});
  Bytes seed{std::byte{1}};
  for (const std::size_t bytes : {0, 4, 300}) {
    link.post_send(std::span(data).first(bytes));
    seed.push_back(static_cast<std::byte>(bytes >> 8));
    seed.push_back(static_cast<std::byte>(bytes & 0xFF));
  }
  seed.push_back(std::byte{0xFF});
  link.post_note(1, std::span(data).first(40));
  while (link.wants().fd >= 0) {
    if (!link.pump_out()) return {};
  }
  Bytes stream(1024);
  const ssize_t got = ::recv(reader.get(), stream.data(), stream.size(), 0);
  seed.insert(seed.end(), stream.begin(), stream.begin() + (got > 0 ? got : 0));
  return {seed};
}

}  // namespace

const Target kPeerLink{"peer_link", run, seeds};

}  // namespace farandole::fuzz

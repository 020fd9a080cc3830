#include "transport/peer_link.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/little_endian.h"

namespace farandole {
namespace {

constexpr std::uint32_t kMessage = 0x61647552;  // "Ruda": unlikely in a stream that is out of step
constexpr std::uint32_t kNote = 0x6e647552;     // "Rudn"
constexpr std::size_t kChunk = std::size_t{1} << 20;  // bytes moved in one turn
constexpr std::size_t kParts = 16;                    // of one system call
/// Room for a note and more, so that one system call reads several small messages.
constexpr std::size_t kInboxBytes = kMaxNote + 4096;
/// A next message of at most this size is read together with the current one, at the cost of one
/// more copy.
constexpr std::size_t kSmall = 4096;

}  // namespace

PeerLink::Ticket PeerLink::post_send(std::span<const std::byte> data) {
  const Ticket ticket = outgoing_.posted++;
  if (outgoing_.broken) return ticket;
  want();
  Sending& sending = outgoing_.queue.emplace_back();
  store_little_endian(sending.header.data(), kMessage);
  store_little_endian(sending.header.data() + 4, static_cast<std::uint32_t>(ticket));
  store_little_endian(sending.header.data() + 8, static_cast<std::uint64_t>(data.size()));
  store_little_endian(sending.header.data() + 16, operation());
  sending.data = const_cast<std::byte*>(data.data());  // iovec has no const; only read from
  sending.bytes = data.size();
  return ticket;
}

void PeerLink::post_note(std::uint64_t subject, std::span<const std::byte> body) {
  if (outgoing_.broken) return;
  want();
  Sending& sending = outgoing_.queue.emplace_back();
  store_little_endian(sending.header.data(), kNote);
  store_little_endian(sending.header.data() + 4, outgoing_.notes++);
  store_little_endian(sending.header.data() + 8, static_cast<std::uint64_t>(body.size()));
  store_little_endian(sending.header.data() + 16, subject);
  sending.data = const_cast<std::byte*>(body.data());
  sending.bytes = body.size();
  sending.note = true;
}

void PeerLink::give_up(const Error& reason) {
  break_off(outgoing_, reason);
  break_off(incoming_, reason);
}

void PeerLink::keep_notes() {
  for (Sending& sending : outgoing_.queue) {
    if (!sending.note || !sending.kept.empty()) continue;
    sending.kept.assign(sending.data, sending.data + sending.bytes);
    sending.data = sending.kept.data();
  }
}

PeerLink::Ticket PeerLink::post_recv(std::span<std::byte> data) {
  const Ticket ticket = incoming_.posted++;
  if (incoming_.broken) return ticket;
  want();
  incoming_.queue.push_back({data, operation()});
  incoming_.unasked = false;
  return ticket;
}

Result<bool> PeerLink::pump_out() {
  std::size_t moved = 0;
  while (socket_ && !outgoing_.broken && !outgoing_.queue.empty() && moved < kChunk) {
    std::array<iovec, kParts> parts;
    std::size_t used = 0;
    std::size_t skip = outgoing_.moved;
    std::size_t asked = 0;
    const auto add = [&](std::byte* data, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      asked += bytes - skipped;
      if (skipped < bytes) parts[used++] = {data + skipped, bytes - skipped};
    };
    for (Sending& sending : outgoing_.queue) {
      if (used + 2 > kParts) break;
      add(sending.header.data(), sending.header.size());
      add(sending.data, sending.bytes);
    }
    auto bytes = socket_->write(std::span<const iovec>(parts.data(), used));
    if (!bytes) {
      break_off(outgoing_, std::move(bytes).error());
      break;
    }
    moved += *bytes;
    account(*bytes);
    if (*bytes < asked) break;  // no room for more
  }
  if (outgoing_.broken && moved == 0) return *outgoing_.broken;
  return moved != 0;
}

void PeerLink::account(std::size_t written) {
  while (written != 0) {
    const Sending& front = outgoing_.queue.front();
    const std::size_t now = std::min(written, kHeaderBytes + front.bytes - outgoing_.moved);
    written -= now;
    outgoing_.moved += now;
    if (outgoing_.moved < kHeaderBytes + front.bytes) return;
    if (!front.note) ++outgoing_.completed;
    outgoing_.queue.pop_front();
    outgoing_.moved = 0;
  }
}

Result<bool> PeerLink::pump_in() {
  if (!socket_) {
    if (incoming_.broken) return *incoming_.broken;
    return false;
  }
  std::size_t moved = 0;
  const Ticket before = incoming_.completed;
  const std::size_t arrived = socket_->arrived();
  while (!incoming_.broken) {
    if (auto digested = digest(); !digested) {
      break_off(incoming_, std::move(digested).error());
      break;
    }
    if (!awaits() || moved >= kChunk) break;
    std::size_t asked = 0;
    auto bytes = read_some(asked);
    if (!bytes) {
      break_off(incoming_, std::move(bytes).error());
      break;
    }
    moved += *bytes;
    if (*bytes == 0) break;
    if (*bytes == asked) continue;
    if (auto digested = digest(); !digested) break_off(incoming_, std::move(digested).error());
    break;  // nothing more is there
  }
  const bool advanced =
      moved != 0 || incoming_.completed != before || socket_->arrived() != arrived;
  if (incoming_.broken && !advanced) return *incoming_.broken;
  return advanced;
}

/// Reads the rest of the current message into its place, and what follows into the inbox.
Result<std::size_t> PeerLink::read_some(std::size_t& asked) {
  Incoming& in = incoming_;
  if (in.inbox.empty()) in.inbox.resize(kInboxBytes);
  if (in.taken != 0) {
    std::memmove(in.inbox.data(), in.inbox.data() + in.taken, in.filled - in.taken);
    in.filled -= in.taken;
    in.taken = 0;
  }
  std::array<iovec, 2> parts;
  std::size_t used = 0;
  std::size_t room = in.inbox.size() - in.filled;
  std::size_t direct = 0;
  if (in.inside) {
    direct = in.queue.front().rest.size();
    parts[used++] = {in.queue.front().rest.data(), direct};
    // A long next message must not be copied, so only its header is read here.
    const bool short_next = in.queue.size() > 1 && in.queue[1].rest.size() <= kSmall;
    room = std::min(room, kHeaderBytes + (short_next ? in.queue[1].rest.size() : 0));
  } else if (in.filled < kHeaderBytes && !in.queue.empty() &&
             in.queue.front().rest.size() > kSmall) {
    room = kHeaderBytes - in.filled;  // with a whole header there, it is an incomplete note
  }
  parts[used++] = {in.inbox.data() + in.filled, room};
  asked = direct + room;
  auto bytes = socket_->read(std::span<const iovec>(parts.data(), used));
  if (!bytes) return bytes;
  const std::size_t arrived = std::min(*bytes, direct);
  if (in.inside) {
    in.queue.front().rest = in.queue.front().rest.subspan(arrived);
    deliver();
  }
  in.filled += *bytes - arrived;
  return bytes;
}

/// Completes the current message if nothing of it is left.
void PeerLink::deliver() {
  if (!incoming_.queue.front().rest.empty()) return;
  incoming_.queue.pop_front();
  incoming_.inside = false;
  ++incoming_.completed;
}

/// Handles what the inbox holds, as far as it is complete.
Result<void> PeerLink::digest() {
  Incoming& in = incoming_;
  for (;;) {
    if (in.inside) {
      std::span<std::byte>& rest = in.queue.front().rest;
      const std::size_t now = std::min(rest.size(), in.filled - in.taken);
      if (now != 0) std::memcpy(rest.data(), in.inbox.data() + in.taken, now);
      in.taken += now;
      rest = rest.subspan(now);
      deliver();
      if (in.inside) break;
    }
    auto more = digest_header();
    if (!more) return std::move(more).error();
    if (!*more) break;
  }
  if (in.taken == in.filled) in.taken = in.filled = 0;
  return {};
}

/// False: it is incomplete.
Result<bool> PeerLink::digest_header() {
  Incoming& in = incoming_;
  if (in.filled - in.taken < kHeaderBytes) return false;
  const std::byte* const header = in.inbox.data() + in.taken;
  const auto magic = load_little_endian<std::uint32_t>(header);
  const auto number = load_little_endian<std::uint32_t>(header + 4);
  const auto bytes = load_little_endian<std::uint64_t>(header + 8);
  const auto operation = load_little_endian<std::uint64_t>(header + 16);
  if (magic == kNote) {
    if (sink_ == nullptr || number != in.notes || bytes > kMaxNote) {
      return out_of_step("note " + std::to_string(number) + " of " + std::to_string(bytes) +
                         " bytes");
    }
    if (in.filled - in.taken < kHeaderBytes + bytes) return false;
    ++in.notes;
    in.taken += kHeaderBytes + bytes;
    auto taken = sink_->note(peer_, operation, {header + kHeaderBytes, bytes});
    if (!taken) return std::move(taken).error();
    return true;
  }
  if (magic != kMessage) return out_of_step("something that is no message");
  if (in.queue.empty()) {
    in.unasked = true;
    return false;
  }
  if (operation != in.queue.front().operation) {
    return mixed_up(peer_, operation, in.queue.front().operation);
  }
  if (number != static_cast<std::uint32_t>(in.completed) || bytes != in.queue.front().rest.size()) {
    return out_of_step("message " + std::to_string(number) + " of " + std::to_string(bytes) +
                       " bytes");
  }
  in.taken += kHeaderBytes;
  in.inside = true;
  return true;
}

Error PeerLink::out_of_step(std::string_view got) const {
  Error error;
  error.peer = peer_;
  error.message = "the data stream from rank " + std::to_string(error.peer) +
                  " is out of step: expected message " +
                  std::to_string(static_cast<std::uint32_t>(incoming_.completed));
  if (!incoming_.queue.empty()) {
    error.message += " of " + std::to_string(incoming_.queue.front().rest.size()) + " bytes";
  }
  error.message += ", got ";
  error.message += got;
  return error;
}

void PeerLink::break_off(Direction& direction, Error reason) {
  direction.broken = std::move(reason);
  if (&direction == &outgoing_) {
    outgoing_.queue.clear();
  } else {
    incoming_.queue.clear();
    incoming_.inside = false;
  }
}

void PeerLink::forget(Direction& direction, Ticket ticket) {
  if (ticket < direction.completed || direction.broken) return;
  Error error;
  error.peer = peer_;
  error.message = "an operation with rank " + std::to_string(error.peer) +
                  " was abandoned before it was complete";
  break_off(direction, std::move(error));
}

pollfd PeerLink::wants() const noexcept {
  if (!socket_) return {.fd = -1, .events = 0, .revents = 0};
  const int events = (awaits() ? POLLIN : 0) | (outgoing_.queue.empty() ? 0 : POLLOUT);
  return {
      .fd = events == 0 ? -1 : socket_->fd(), .events = static_cast<short>(events), .revents = 0};
}

}  // namespace farandole

#include "transport/peer_link.h"

#include <algorithm>
#include <string>

#include "transport/little_endian.h"

namespace rueda {
namespace {

constexpr std::uint32_t kMagic = 0x61647552;          // "Ruda": a stream out of step hardly has it
constexpr std::size_t kChunk = std::size_t{1} << 20;  // bytes moved before others get their turn
constexpr std::size_t kParts = 16;                    // of one system call

/// The parts of `queue` that still have to move, headers and data in turn.
template <typename Queue>
std::size_t gather(Queue& queue, std::size_t skip, std::array<iovec, kParts>& parts) {
  std::size_t used = 0;
  const auto add = [&](std::byte* data, std::size_t bytes) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (skipped < bytes) parts[used++] = {data + skipped, bytes - skipped};
  };
  for (auto& transfer : queue) {
    if (used + 2 > kParts) break;
    add(transfer.header.data(), transfer.header.size());
    add(transfer.data, transfer.bytes);
  }
  return used;
}

}  // namespace

PeerLink::Ticket PeerLink::post_send(std::span<const std::byte> data) {
  const Ticket ticket = outgoing_.posted++;
  if (outgoing_.broken) return ticket;
  Transfer transfer;
  store_little_endian(transfer.header.data(), kMagic);
  store_little_endian(transfer.header.data() + 4, static_cast<std::uint32_t>(ticket));
  store_little_endian(transfer.header.data() + 8, static_cast<std::uint64_t>(data.size()));
  transfer.data = const_cast<std::byte*>(data.data());  // iovec has no const; only read from
  transfer.bytes = data.size();
  outgoing_.queue.push_back(transfer);
  return ticket;
}

PeerLink::Ticket PeerLink::post_recv(std::span<std::byte> data) {
  const Ticket ticket = incoming_.posted++;
  if (incoming_.broken) return ticket;
  Transfer transfer;
  transfer.data = data.data();
  transfer.bytes = data.size();
  incoming_.queue.push_back(transfer);
  return ticket;
}

Result<bool> PeerLink::pump_out() { return pump(outgoing_, false); }
Result<bool> PeerLink::pump_in() { return pump(incoming_, true); }

Result<bool> PeerLink::pump(Direction& direction, bool incoming) {
  std::size_t moved = 0;
  while (!direction.broken && !direction.queue.empty() && moved < kChunk) {
    std::array<iovec, kParts> parts;
    const std::span<const iovec> rest(parts.data(),
                                      gather(direction.queue, direction.front_moved, parts));
    auto bytes = incoming ? socket_.read(rest) : socket_.write(rest);
    if (!bytes) {
      break_off(direction, std::move(bytes).error());
      break;
    }
    if (*bytes == 0) break;
    moved += *bytes;
    if (auto valid = advance(direction, *bytes, incoming); !valid) {
      break_off(direction, std::move(valid).error());
      break;
    }
  }
  if (direction.broken && moved == 0) return *direction.broken;
  return moved != 0;
}

Result<void> PeerLink::advance(Direction& direction, std::size_t bytes, bool incoming) {
  while (bytes != 0) {
    const Transfer& front = direction.queue.front();
    const std::size_t whole = kHeaderBytes + front.bytes;
    const std::size_t before = direction.front_moved;
    const std::size_t now = std::min(bytes, whole - before);
    bytes -= now;
    direction.front_moved += now;
    if (incoming && before < kHeaderBytes && direction.front_moved >= kHeaderBytes) {
      if (auto valid = check_header(front); !valid) return valid;
    }
    if (direction.front_moved == whole) {
      direction.queue.pop_front();
      direction.front_moved = 0;
      ++direction.completed;
    }
  }
  return {};
}

Result<void> PeerLink::check_header(const Transfer& transfer) const {
  const auto magic = load_little_endian<std::uint32_t>(transfer.header.data());
  const auto number = load_little_endian<std::uint32_t>(transfer.header.data() + 4);
  const auto bytes = load_little_endian<std::uint64_t>(transfer.header.data() + 8);
  const auto expected = static_cast<std::uint32_t>(incoming_.completed);
  if (magic == kMagic && number == expected && bytes == transfer.bytes) return {};
  Error error;
  error.peer = socket_.peer();
  error.message = "the data stream from rank " + std::to_string(error.peer) +
                  " is out of step: expected message " + std::to_string(expected) + " of " +
                  std::to_string(transfer.bytes) + " bytes, got ";
  error.message += magic != kMagic ? "something that is no message"
                                   : "message " + std::to_string(number) + " of " +
                                         std::to_string(bytes) + " bytes";
  return error;
}

void PeerLink::break_off(Direction& direction, Error reason) {
  direction.broken = std::move(reason);
  direction.queue.clear();
}

void PeerLink::forget(Direction& direction, Ticket ticket) {
  if (ticket < direction.completed || direction.broken) return;
  Error error;
  error.peer = socket_.peer();
  error.message = "an operation with rank " + std::to_string(error.peer) +
                  " was abandoned before it was complete";
  break_off(direction, std::move(error));
}

pollfd PeerLink::wants() const noexcept {
  const int events =
      (incoming_.queue.empty() ? 0 : POLLIN) | (outgoing_.queue.empty() ? 0 : POLLOUT);
  return {
      .fd = events == 0 ? -1 : socket_.fd(), .events = static_cast<short>(events), .revents = 0};
}

}  // namespace rueda

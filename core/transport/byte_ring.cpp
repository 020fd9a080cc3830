#include "transport/byte_ring.h"

#include <algorithm>
#include <cstring>

namespace farandole {
namespace {

Error malformed() {
  Error error;
  error.code = Code::Internal;
  error.message =
      "A ring in shared memory has an impossible counter: the other rank violated the protocol.";
  return error;
}

}  // namespace

RingWriter::RingWriter(RingMemory ring) noexcept
    : ring_(ring), written_(ring.head->written.load(std::memory_order_relaxed)) {}

std::uint32_t RingWriter::used() const noexcept {
  return written_ - ring_.head->read.load(std::memory_order_seq_cst);
}

Result<std::size_t> RingWriter::put(std::span<const std::byte> data) {
  const std::size_t capacity = ring_.data.size();
  const std::size_t in_use = used();
  if (in_use > capacity) return malformed();
  const std::size_t count = std::min(data.size(), capacity - in_use);
  if (count == 0) return count;
  const std::size_t at = written_ % capacity;
  const std::size_t before_wrap = std::min(count, capacity - at);
  std::memcpy(ring_.data.data() + at, data.data(), before_wrap);
  if (count > before_wrap) {
    std::memcpy(ring_.data.data(), data.data() + before_wrap, count - before_wrap);
  }
  written_ += static_cast<std::uint32_t>(count);
  return count;
}

bool RingWriter::publish() noexcept {
  if (ring_.head->written.load(std::memory_order_relaxed) == written_) return false;
  ring_.head->written.store(written_, std::memory_order_seq_cst);
  return true;
}

bool RingWriter::has_room() const noexcept { return used() != ring_.data.size(); }

bool RingWriter::want_room() noexcept {
  ring_.head->wants_room.store(1, std::memory_order_seq_cst);
  return !has_room();  // checked after the request is visible, so a reader that makes room later
                       // sees the request
}

void RingWriter::close() noexcept { ring_.head->closed.store(1, std::memory_order_seq_cst); }

RingReader::RingReader(RingMemory ring) noexcept
    : ring_(ring), read_(ring.head->read.load(std::memory_order_relaxed)) {}

Result<std::size_t> RingReader::take(std::span<std::byte> out) {
  const std::size_t capacity = ring_.data.size();
  const std::size_t available = ring_.head->written.load(std::memory_order_seq_cst) - read_;
  if (available > capacity) return malformed();
  const std::size_t count = std::min(out.size(), available);
  if (count == 0) return count;
  const std::size_t at = read_ % capacity;
  const std::size_t before_wrap = std::min(count, capacity - at);
  std::memcpy(out.data(), ring_.data.data() + at, before_wrap);
  if (count > before_wrap) {
    std::memcpy(out.data() + before_wrap, ring_.data.data(), count - before_wrap);
  }
  read_ += static_cast<std::uint32_t>(count);
  return count;
}

bool RingReader::release() noexcept {
  if (ring_.head->read.load(std::memory_order_relaxed) == read_) return false;
  // The request is cleared before the room becomes visible: a later request, made when the ring is
  // full again, must stay. A request that comes in between is seen by the second load.
  const bool wished = ring_.head->wants_room.load(std::memory_order_seq_cst) != 0;
  if (wished) ring_.head->wants_room.store(0, std::memory_order_seq_cst);
  ring_.head->read.store(read_, std::memory_order_seq_cst);
  return wished || ring_.head->wants_room.load(std::memory_order_seq_cst) != 0;
}

bool RingReader::has_data() const noexcept {
  return ring_.head->written.load(std::memory_order_seq_cst) != read_;
}

bool RingReader::closed() const noexcept {
  return ring_.head->closed.load(std::memory_order_seq_cst) != 0;
}

}  // namespace farandole

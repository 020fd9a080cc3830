/// A stream of bytes from one process to another, through a ring buffer in shared memory.
///
/// One writer, one reader. Neither trusts the other: an impossible counter is an error, never an
/// access outside the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "result.h"
#include "transport/shm_layout.h"

namespace farandole {

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(RingMemory ring) noexcept;

  /// Copies as much as there is room for, and returns the count. The reader sees it after
  /// publish().
  [[nodiscard]] Result<std::size_t> put(std::span<const std::byte> data);
  /// Makes what was put visible to the reader. True if there was anything new: then ring its bell.
  bool publish() noexcept;
  /// Asks the reader to ring when it makes room. False if there is room already.
  [[nodiscard]] bool want_room() noexcept;
  [[nodiscard]] bool has_room() const noexcept;
  /// Tells the reader that nothing will follow.
  void close() noexcept;

 private:
  [[nodiscard]] std::uint32_t used() const noexcept;

  RingMemory ring_;
  std::uint32_t written_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(RingMemory ring) noexcept;

  /// Takes up to out.size() bytes, and returns the count. The writer sees the room after release().
  [[nodiscard]] Result<std::size_t> take(std::span<std::byte> out);
  /// Gives the room of what was taken back. True if the writer waits for it: then ring its bell.
  bool release() noexcept;
  [[nodiscard]] bool has_data() const noexcept;
  [[nodiscard]] bool closed() const noexcept;

 private:
  RingMemory ring_;
  std::uint32_t read_ = 0;
};

}  // namespace farandole

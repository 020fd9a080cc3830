/// Alltoall through shared memory, in many chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/buffers/span_list.h"
#include "backends/shm/arena.h"

namespace farandole {

[[nodiscard]] std::unique_ptr<Operation> stream_alltoall(ShmArena& arena, AlltoallPlan plan);

/// A member's contribution as one run of bytes: a table of where each part begins, then the parts,
/// that of the next member first. So members that read at the same time read different slots. The
/// member's part for itself is left out.
class AlltoallStream {
 public:
  using Offset = std::uint64_t;

  /// Bytes of the table in front.
  [[nodiscard]] static std::size_t table_bytes(int members) noexcept {
    return sizeof(Offset) * static_cast<std::size_t>(members);
  }
  AlltoallStream(const std::vector<std::span<const std::byte>>& in, int self);
  AlltoallStream(const AlltoallStream&) = delete;
  AlltoallStream& operator=(const AlltoallStream&) = delete;

  /// Bytes [begin, begin + most) of it, as far as it goes.
  void copy(std::byte* to, std::size_t begin, std::size_t most, PeerCopies& copies) const;

 private:
  std::vector<Offset> table_;  // by set rank
  SpanList<const std::byte> bytes_;
};

}  // namespace farandole

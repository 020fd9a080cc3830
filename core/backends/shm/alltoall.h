/// Everybody's part for everybody, through the slots of many chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/buffers/span_list.h"
#include "backends/shm/arena.h"

namespace rueda {

[[nodiscard]] std::unique_ptr<Operation> stream_alltoall(ShmArena& arena, AlltoallPlan plan);

/// What a member brings, as one run of bytes: where every member's part begins, and the parts, that
/// of the next member first. So the members, reading side by side, read different slots. The own
/// part stays out of it.
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
  void copy(std::byte* to, std::size_t begin, std::size_t most) const;

 private:
  std::vector<Offset> table_;  // by set rank
  SpanList<const std::byte> bytes_;
};

}  // namespace rueda

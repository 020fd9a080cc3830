/// Collectives through the slots of a host: of one meeting, where everybody copies in, raises a
/// flag and reads everybody's slot; and of many chunks, pipelined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/buffers/spans.h"
#include "backends/shm/arena.h"

namespace farandole {

[[nodiscard]] std::unique_ptr<Operation> small_allreduce(ShmArena& arena,
                                                         std::span<const Piece> pieces,
                                                         const Reduction& reduction);
/// No contribution is longer than the small slot.
[[nodiscard]] std::unique_ptr<Operation> small_allgather(ShmArena& arena, GatherPlan plan);
/// What is brought, all pieces together, is no longer than the small slot.
[[nodiscard]] std::unique_ptr<Operation> small_reducescatter(ShmArena& arena,
                                                             std::span<const ScatterPiece> pieces,
                                                             const Reduction& reduction);
/// What the longest member brings and its table are no longer than the small slot.
[[nodiscard]] std::unique_ptr<Operation> small_alltoall(ShmArena& arena, AlltoallPlan plan);
[[nodiscard]] std::unique_ptr<Operation> shm_barrier(ShmArena& arena);

/// At least one element.
[[nodiscard]] std::unique_ptr<Operation> large_allreduce(ShmArena& arena,
                                                         std::span<const Piece> pieces,
                                                         const Reduction& reduction);

[[nodiscard]] std::unique_ptr<Operation> large_reducescatter(ShmArena& arena,
                                                             std::span<const ScatterPiece> pieces,
                                                             const Reduction& reduction);

// Bytes that go through the slots as they are: contributions of any length, and one member's.

[[nodiscard]] std::unique_ptr<Operation> stream_allgather(ShmArena& arena, GatherPlan plan);
[[nodiscard]] std::unique_ptr<Operation> stream_broadcast(ShmArena& arena,
                                                          std::span<const std::byte> in,
                                                          std::span<std::byte> out, int root);

// Alltoall through shared memory, in many chunks.

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

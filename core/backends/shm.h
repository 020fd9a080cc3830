/// Members on one host, host memory: through slots in shared segments.
///
/// Small operations: everybody copies into its small slot, raises a flag, and reduces everybody's
/// slot by itself. Large ones go through three slots of chunks that stay in cache: copy in, reduce
/// the own part of the chunk, copy the others' parts out. See shm_small.cpp and shm_large.cpp.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "transport/doorbell.h"
#include "transport/shm_layout.h"

namespace rueda {

/// Borders that were measured; results do not depend on them. The same on every member.
struct ShmTuning {
  /// Up to here everybody reduces everything. At most kShmSmallBytes. 0: chosen by member count.
  std::size_t small_bytes = 0;
  /// Bytes of a chunk. A multiple of 64, at most kShmSlotBytes. 0: chosen by member count.
  std::size_t chunk_bytes = 0;
};

/// A member's segment, and how to wake it.
struct ShmMember {
  ShmView segment;
  int local_index = 0;  ///< its place among the ranks of the host (layout of the rings)
  Doorbell bell;        ///< unused for the own entry
};

class ShmArena;
class ShmPipes;

class ShmBackend final : public Backend {
 public:
  /// `by_set_rank`: one entry per member, the own one included. All members are in one group.
  /// Sequence numbers go on from what the flags in the own segment say, so all members must be
  /// made while no operation of the channel is under way. Segments outlive the backend.
  ShmBackend(Members members, std::vector<ShmMember> by_set_rank, int channel = 0,
             ShmTuning tuning = {});
  ~ShmBackend() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }
  /// "shm.small" or "shm.large".
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;
  std::unique_ptr<Operation> allreduce(std::span<const Piece> pieces,
                                       const Reduction& reduction) override;
  std::unique_ptr<Operation> allgather(GatherPlan plan) override;
  std::unique_ptr<Operation> broadcast(std::span<const std::byte> in, std::span<std::byte> out,
                                       int root) override;
  std::unique_ptr<Operation> barrier() override;

 private:
  std::unique_ptr<ShmArena> arena_;
  std::unique_ptr<ShmPipes> pipes_;
};

}  // namespace rueda

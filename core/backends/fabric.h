/// Which backend serves which ranks: one place for the world and for all process sets.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/shm/pipes.h"
#include "transport/mesh.h"
#include "transport/shm_segment.h"

namespace rueda {

/// How this rank reaches the ranks of its transport group, itself included.
struct ShmHost {
  std::vector<Rank> ranks;         ///< by local index, ascending
  std::vector<ShmMember> members;  ///< by local index
  int self = 0;                    ///< local index
  ShmSegment* own = nullptr;       ///< outlives the fabric and its backends
};

/// Used by the holder of the baton only.
class Fabric {
 public:
  /// `groups`: the transport groups of the world. `host`: empty if this rank is alone in its group.
  /// `mesh`: null if the world is one group.
  Fabric(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
         std::shared_ptr<Mesh> mesh);

  /// What opens every set of more than one rank from now on, in place of the backends of its own.
  using OpenOther = std::function<std::unique_ptr<Backend>(Members)>;
  void use(OpenOther open) { open_other_ = std::move(open); }

  /// No rank of the world makes a larger segment, so what lies beyond is missing on all hosts, or
  /// counts as missing: a set whose channel lies there works without.
  void limit_segments(std::size_t bytes) noexcept { segment_limit_ = bytes; }

  /// No channel: the set gets no memory of its own, all its bytes go through the rings.
  static constexpr int kNoChannel = -1;

  /// A backend for these ranks (global, ascending, this one among them), all of which open the set
  /// with the same `channel`. If any share memory with this rank, the channel gets memory in the
  /// own segment, and the own flags are reset. The members then meet in dissemination_barrier()
  /// before they start the first operation. Only the world needs no meeting: its flags are zero
  /// from the start. Fails if memory is lacking or there is no such channel.
  [[nodiscard]] Result<std::unique_ptr<Backend>> open(std::span<const Rank> ranks, int channel);

  /// The members of such a set: groups hold set ranks, ordered by first member.
  [[nodiscard]] Members members(std::span<const Rank> ranks) const;

 private:
  [[nodiscard]] Result<std::unique_ptr<Backend>> across_hosts(Members members, int channel);
  /// Among members of this rank's group.
  [[nodiscard]] Result<std::unique_ptr<Backend>> in_memory(Members members, int channel);
  /// All ranks find the same: the members of a set must use it in the same way.
  [[nodiscard]] bool is_cut_off(int channel) const noexcept;
  [[nodiscard]] std::vector<int> local_indices(std::span<const Rank> ranks) const;

  Rank self_;
  std::vector<std::vector<Rank>> groups_;
  ShmHost host_;
  std::shared_ptr<ShmPipes> pipes_;
  std::shared_ptr<Mesh> mesh_;
  OpenOther open_other_;
  std::size_t segment_limit_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace rueda

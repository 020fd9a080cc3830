/// Which backend serves which ranks: one place for the world and for all process sets.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backends/registry.h"

namespace rueda {

/// Used by the holder of the baton only.
class Fabric {
 public:
  /// `groups`: the transport groups of the world. `host`: empty if this rank is alone in its group.
  /// `mesh`: null if the world is one group.
  Fabric(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
         std::shared_ptr<Mesh> mesh);

  /// What opens every set of more than one rank from now on, in place of the backends of its own.
  void use(OpenForeign open) { resources_.foreign = std::move(open); }

  /// No rank of the world makes a larger segment, so what lies beyond is missing on all hosts, or
  /// counts as missing: a set whose channel lies there works without.
  void limit_segments(std::size_t bytes) noexcept { segment_limit_ = bytes; }

  /// A backend for these ranks (global, ascending, this one among them), all of which open the set
  /// with the same `channel`. If any share memory with this rank, the channel gets memory in the
  /// own segment, and the own flags are reset. The members then meet in dissemination_barrier()
  /// before they start the first operation. Only the world needs no meeting: its flags are zero
  /// from the start. Fails if memory is lacking or there is no such channel.
  [[nodiscard]] Result<std::unique_ptr<Backend>> open(std::span<const Rank> ranks, int channel);

  /// The members of such a set: groups hold set ranks, ordered by first member.
  [[nodiscard]] Members members(std::span<const Rank> ranks) const;

 private:
  /// All ranks find the same: the members of a set must use it in the same way.
  [[nodiscard]] bool is_cut_off(int channel) const noexcept;

  Rank self_;
  std::vector<std::vector<Rank>> groups_;
  Resources resources_;
  std::size_t segment_limit_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace rueda

/// Chooses and opens the backend that serves given ranks: for the world and for all other process
/// sets.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backends/registry.h"

namespace farandole {

/// Used by the holder of the progress lock only, except for members(), which reads nothing that
/// changes after the constructor.
class BackendFactory {
 public:
  /// `groups`: the transport groups of the world. `host`: empty if this rank is alone in its group.
  /// `mesh`: null if the world is one group.
  BackendFactory(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
                 std::shared_ptr<Mesh> mesh);

  /// From now on `open` makes the backend of every set of more than one rank: a backend in Python.
  void use(OpenForeign open) { resources_.foreign = std::move(open); }

  /// The limit for the segments of all ranks of the world. A set whose channel would lie beyond it
  /// has no channel, on every host.
  void limit_segments(std::size_t bytes) noexcept { segment_limit_ = bytes; }

  /// Opens a backend for these ranks (global, ascending, this one among them). All of them open the
  /// set with the same `channel`. If some share memory with this rank, memory is reserved for the
  /// channel in this rank's segment, and its flags are reset. The members must then run
  /// dissemination_barrier() before their first operation. The world needs none, because its flags
  /// are zero from the start. Fails if memory is lacking or there is no such channel.
  [[nodiscard]] Result<std::unique_ptr<Backend>> open(std::span<const Rank> ranks, int channel);

  /// True if the channel would lie beyond the limit. Gives the same result on all ranks, because
  /// all members of a set must agree whether it has a channel. Any thread.
  [[nodiscard]] bool is_cut_off(int channel) const noexcept;

  /// The members of such a set: groups hold set ranks, ordered by first member. Any thread.
  [[nodiscard]] Members members(std::span<const Rank> ranks) const;

 private:
  const Rank self_;
  const std::vector<std::vector<Rank>> groups_;
  Resources resources_;
  std::size_t segment_limit_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace farandole

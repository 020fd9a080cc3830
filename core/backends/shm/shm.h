/// Members on one host, host memory: through slots in shared segments.
///
/// Small operations: everybody copies into its small slot, raises a flag, and reduces everybody's
/// slot by itself. Large ones go through a ring of slots, chunk by chunk: copy in, reduce
/// the own part of the chunk, copy the others' parts out. See small.cpp and large.cpp. In
/// between, what is not reduced is read straight out of its owner's memory where the system allows
/// that: cross_memory.h.
#pragma once

#include <memory>
#include <vector>

#include "backends/shm/pipes.h"

namespace farandole {

/// Borders that were measured; results do not depend on them. The same on every member.
struct ShmTuning {
  /// Up to here everybody reduces everything. At most kShmSmallBytes. 0: chosen by member count.
  std::size_t small_bytes = 0;
  /// How many slots are used in turn: at least kLeastShmSlots, at most what the channel has. 0:
  /// all.
  std::size_t slots = 0;
  /// Bytes of a chunk. A multiple of 64, at most kShmSlotBytes. 0: chosen by member count.
  std::size_t chunk_bytes = 0;
  /// Beyond small_bytes: where members read each other's memory, if they can. 0: chosen by member
  /// count.
  std::size_t cross_memory_bytes = 0;            ///< from here on
  std::size_t cross_memory_most_bytes = 0;       ///< up to here, of the longest result
  std::size_t cross_memory_broadcast_bytes = 0;  ///< up to here in a broadcast
};

/// Whose flags and slots a backend works with: see kShmChannels.
struct ShmChannelUse {
  int channel = 0;
  /// False: sequence numbers go on from what the flags in the own segment say, which is the same on
  /// all members, so no operation of the channel may be under way when a member is made.
  /// True: other members used the channel before, or nobody; the own flags start at zero. No
  /// operation may be started before all members have been made (a barrier over send and recv,
  /// dissemination_barrier(), tells), and none of the channel's last users may be under way when
  /// the first member is made.
  bool fresh = false;
};

class ShmArena;
class CrossMemory;

class ShmBackend final : public PipesBackend {
 public:
  /// `by_set_rank`: one entry per member, the own one included. All members are in one group.
  /// The channel has memory in all their segments. `pipes`: those of this process; it knows all
  /// ranks of the host, set or not. Segments outlive the backend.
  ShmBackend(Members members, std::vector<ShmMember> by_set_rank, std::shared_ptr<ShmPipes> pipes,
             ShmChannelUse use = {}, ShmTuning tuning = {});
  ~ShmBackend() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }
  /// "shm.small" or "shm.large". `bytes`: what one member brings; for an alltoall the longest. What
  /// may have gone as "shm.direct" says so by itself: Operation::path().
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  void begin(OperationTag operation) override;
  std::unique_ptr<Operation> start(Verb verb) override;

 private:
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb);
  /// Whether everybody reads everything in one meeting.
  [[nodiscard]] bool small(Kind kind, std::size_t bytes) const noexcept;

  /// Whether members read each other's memory, as far as is known. `longest`: of what one member
  /// brings; `result`: of what the longest result has. The same on every member.
  [[nodiscard]] bool cross_memory(std::size_t longest, std::size_t result) const noexcept;

  std::unique_ptr<ShmArena> arena_;
  std::unique_ptr<CrossMemory> cross_memory_;
};

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_shm(Members members, int channel,
                                                        const Resources& resources);

}  // namespace farandole

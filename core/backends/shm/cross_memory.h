/// Cross-memory attach (CMA): allgather, broadcast and alltoall without slots. Every member reads
/// what it needs from the memory of its owner. That is one copy instead of two, and only cache
/// lines of the data move between cores.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/shm/arena.h"

namespace farandole {

/// Decides whether the members of a set read each other's memory. All members decide the same, at
/// the first operation that could use it. Used by the holder of the progress lock only.
class CrossMemory {
 public:
  CrossMemory(const ShmArena& arena, const std::vector<ShmMember>& by_set_rank);

  /// False: some member cannot read all others, and all members know that.
  [[nodiscard]] bool possible() const noexcept { return possible_; }
  void give_up() noexcept { possible_ = false; }
  /// All members have said that they can read all others. All of them know it, from the same
  /// operation on.
  [[nodiscard]] bool agreed() const noexcept { return possible_ && agreed_; }
  void agree() noexcept { agreed_ = true; }

  /// True if this member can read all others. Checked once, when all of them have started.
  [[nodiscard]] bool reaches_all();
  [[nodiscard]] const PeerMemory& memory(int member) const noexcept { return at(member).memory; }
  /// True if the member runs and has not failed: then what was read from its memory was what it
  /// named.
  [[nodiscard]] bool stands(int member) const noexcept;

 private:
  struct Member {
    PeerMemory memory;
    const MemoryCard* card = nullptr;
    const CauseRecord* cause = nullptr;
  };
  [[nodiscard]] const Member& at(int member) const noexcept {
    return members_[static_cast<std::size_t>(member)];
  }

  std::vector<Member> members_;  // by set rank
  int self_;
  bool possible_ = true;
  bool proven_ = false;
  bool agreed_ = false;
};

/// Fall back to the chunks of stream.h and alltoall.h, all members together, if one of them
/// is refused another's memory.
[[nodiscard]] std::unique_ptr<Operation> cross_memory_allgather(ShmArena& arena,
                                                                CrossMemory& memory,
                                                                GatherPlan plan,
                                                                std::size_t result);
[[nodiscard]] std::unique_ptr<Operation> cross_memory_alltoall(ShmArena& arena, CrossMemory& memory,
                                                               AlltoallPlan plan);
[[nodiscard]] std::unique_ptr<Operation> cross_memory_broadcast(ShmArena& arena,
                                                                CrossMemory& memory,
                                                                std::span<const std::byte> in,
                                                                std::span<std::byte> out, int root);

}  // namespace farandole

/// Cross-memory attach: allgather, broadcast and alltoall without slots. Everybody reads what it
/// needs out of the memory of its owner. One copy in place of two, and no line goes from core to
/// core but the data's own.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/shm/arena.h"

namespace rueda {

/// Whether the members of a set read each other's memory. All members come to the same verdict at
/// the same operation, the first that could go that way. Used by the holder of the baton only.
class CrossMemory {
 public:
  CrossMemory(const ShmArena& arena, const std::vector<ShmMember>& by_set_rank);

  /// False: some member cannot read all others; known to all of them.
  [[nodiscard]] bool possible() const noexcept { return possible_; }
  void give_up() noexcept { possible_ = false; }

  /// This member can read all others. Found out once, when all of them have started.
  [[nodiscard]] bool reaches_all();
  [[nodiscard]] const PeerMemory& memory(int member) const noexcept { return at(member).memory; }
  /// The member lives and has not given up: so far its memory was what it named.
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

}  // namespace rueda

/// What the shared-memory operations of one process set work with: its members' flags and slots.
///
/// Two independent kinds of sequence numbers, which all members count alike because all run the
/// same operations in the same order:
///
/// * *Small operations.* Operation s uses small slot s mod 2. Every member raises its flag and
///   waits for everybody's. So a member that starts s + 2 knows that all have finished s, and two
///   slots are enough.
/// * *Chunks.* Every other operation is a number of chunks, the same on all members. Chunk s may be
///   written into its slot when all others have *drained* the chunk that used it before.
///   Nothing is assumed about how far members run ahead of each other, so any mix of operations is
///   safe. When an operation ends, all own flags stand at its end: none may lag by 2^31.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/shm.h"
#include "kernels/peer_copies.h"
#include "transport/shm_layout.h"

namespace farandole {

enum class ShmMark : std::uint8_t { Small = 0, Filled = 1, Reduced = 2, Drained = 3 };

/// Used by the holder of the progress lock only.
class ShmArena {
 public:
  ShmArena(const Members& members, const std::vector<ShmMember>& by_set_rank, ShmChannelUse use,
           ShmTuning tuning);

  [[nodiscard]] int self() const noexcept { return self_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// Global number of a member.
  [[nodiscard]] Rank rank(int member) const noexcept { return at(member).rank; }
  [[nodiscard]] const ShmTuning& tuning() const noexcept { return tuning_; }

  /// What is started from now on belongs to that operation.
  void begin(OperationTag operation) noexcept { operation_ = operation; }
  /// True if the contribution of a member, which has reached that mark, belongs to this rank's
  /// operation. For Small and Filled.
  [[nodiscard]] bool same(int member, ShmMark mark, std::uint32_t target) const noexcept {
    return tag(at(member), mark, target).load(std::memory_order_relaxed) == operation_;
  }
  /// The error of a member of which same() is false.
  [[nodiscard]] Error mixed(int member, ShmMark mark, std::uint32_t target) const {
    return mixed_up(at(member).rank, tag(at(member), mark, target).load(std::memory_order_relaxed),
                    operation_);
  }
  /// Whether same() is true of all members; the error is that of the first of which it is not.
  [[nodiscard]] Result<void> check(ShmMark mark, std::uint32_t target) const;

  /// Stores the own flag and wakes the members that sleep. Drained wakes only those that asked.
  void publish(ShmMark mark, std::uint32_t value) noexcept;
  [[nodiscard]] bool has_reached(int member, ShmMark mark, std::uint32_t target) noexcept;
  /// All members but this one.
  [[nodiscard]] bool all_reached(ShmMark mark, std::uint32_t target) noexcept;
  /// Global ranks of the members that have not reached it.
  [[nodiscard]] std::vector<Rank> behind(ShmMark mark, std::uint32_t target) const;

  /// The number of the next small operation.
  [[nodiscard]] std::uint32_t next_small() noexcept { return small_++; }
  [[nodiscard]] std::byte* small_slot(int member, std::uint32_t sequence) const noexcept {
    return at(member).small[sequence % kShmSmallSlots];
  }

  /// Consecutive chunks of one operation.
  struct Chunks {
    std::uint32_t first = 0;  ///< sequence number of the first
    std::uint32_t slot =
        0;  ///< its slot (2^32 may be no multiple of their number, so it is counted apart)
    std::uint32_t count = 0;
    [[nodiscard]] std::uint32_t sequence(std::size_t chunk) const noexcept {
      return first + static_cast<std::uint32_t>(chunk);
    }
    /// What a flag shows when its owner has passed that chunk.
    [[nodiscard]] std::uint32_t after(std::size_t chunk) const noexcept {
      return sequence(chunk) + 1;
    }
  };
  /// How many slots of each member are in use.
  [[nodiscard]] std::uint32_t slots() const noexcept {
    return static_cast<std::uint32_t>(tuning_.slots);
  }
  /// To be taken in the first step of an operation.
  [[nodiscard]] Chunks take_chunks(std::size_t count) noexcept;
  /// True if the chunk's slot is free; if not, others will wake this rank when it is.
  [[nodiscard]] bool may_fill(const Chunks& chunks, std::size_t chunk) noexcept;
  [[nodiscard]] std::vector<Rank> not_drained(const Chunks& chunks, std::size_t chunk) const;
  [[nodiscard]] std::byte* slot(int member, const Chunks& chunks,
                                std::size_t chunk) const noexcept {
    return at(member).slots[(chunks.slot + chunk) % slots()];
  }
  [[nodiscard]] ShmPlaces& places(int member, const Chunks& chunks,
                                  std::size_t chunk) const noexcept {
    return *at(member).places[(chunks.slot + chunk) % slots()];
  }
  /// What copies into the own slots.
  [[nodiscard]] PeerCopies& copies() noexcept { return copies_; }
  /// The memory for tensors of a member; null if it has none.
  [[nodiscard]] ShmHeap* heap(int member) const noexcept { return at(member).heap; }
  /// Those that have given up, and said why.
  [[nodiscard]] std::vector<Rank> fallen() const;
  /// The operation reads and writes no slot any more.
  void finish(const Chunks& chunks) noexcept;

 private:
  struct Member {
    ShmFlags* flags = nullptr;
    Doorbell bell;
    std::array<std::byte*, kShmSmallSlots> small{};
    std::array<std::byte*, kShmSlots> slots{};
    std::array<ShmPlaces*, kShmSlots> places{};
    ShmHeap* heap = nullptr;
    const CauseRecord* cause = nullptr;
    std::array<std::uint32_t, 4> seen{};  // flags as read last: most questions need no new look
    Rank rank = -1;
  };
  [[nodiscard]] const Member& at(int member) const noexcept {
    return members_[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] static std::atomic<std::uint32_t>& flag(const Member& member,
                                                        ShmMark mark) noexcept;
  [[nodiscard]] static std::atomic<std::uint64_t>& tag(const Member& member, ShmMark mark,
                                                       std::uint32_t target) noexcept {
    const auto of = [&](auto& flag) -> std::atomic<std::uint64_t>& {
      return flag.operations[(target - 1) % flag.operations.size()];
    };
    return mark == ShmMark::Small ? of(member.flags->small) : of(member.flags->filled);
  }
  void set_wants_drained(bool wanted) noexcept;

  std::vector<Member> members_;  // by set rank
  int self_;
  OperationTag operation_ = 0;
  ShmTuning tuning_;
  std::uint32_t small_ = 0;
  std::uint32_t chunk_ = 0;
  std::uint32_t slot_ = 0;
  bool wants_drained_ = false;  // what the own flag says
  PeerCopies copies_;
};

}  // namespace farandole

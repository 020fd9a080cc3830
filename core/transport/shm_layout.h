/// The layout of a rank's shared segment.
///
/// Every rank of a host has one segment. All have the same layout, which follows from the number of
/// ranks. The owner writes and the others read, except where a comment says otherwise. All zero is
/// the valid initial state.
///
///     bell word | cause record | beat | memory card | message rings, by reader |
///     byte pipes, by reader | channels | heap
///
/// "By reader": the ring at local index j carries bytes from the owner of the segment to rank j.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "result.h"
#include "transport/doorbell.h"

namespace farandole {

/// The largest number of ranks on one host.
inline constexpr int kMaxLocalRanks = 512;
/// How many process sets of a host can have flags and slots at a time; the world has channel 0.
/// Sets must not share them, because their members finish at different times. A channel that no set
/// uses is address space only.
inline constexpr int kShmChannels = 128;
/// A set without flags and slots: its bytes go through rings, and it has no fast path where members
/// share memory.
inline constexpr int kNoChannel = -1;
/// The most and the fewest slots of the large path in a channel. With three, a rank may fill one
/// while the slower peers still read two. With eight, a slot has left the second-level cache of who
/// wrote it before it is needed again: a line comes faster from the cache that cores share than out
/// of another core's own.
inline constexpr std::uint32_t kShmSlots = 8;
inline constexpr std::uint32_t kLeastShmSlots = 3;
/// Smaller slots need more synchronization.
inline constexpr std::size_t kShmSlotBytes = std::size_t{256} << 10;
inline constexpr std::uint32_t kShmSmallSlots = 2;
inline constexpr std::size_t kShmSmallBytes = std::size_t{64} << 10;
/// Bytes of a proposal behind its head: cache ids, and a contribution of 64 KiB.
inline constexpr std::size_t kProposalBytes = (std::size_t{64} << 10) + 4192;

/// Channels from this one on have the fewest slots, as every rank maps the channels of all. Sets
/// take the lowest one that is free.
inline constexpr int kNarrowShmChannels = 8;

/// How many slots of the large path a channel has. Those of all members should fit into the cache
/// that they share, so where a host has many ranks there are the fewest.
[[nodiscard]] constexpr std::uint32_t shm_slots(int local_size, int channel) noexcept {
  if (channel >= kNarrowShmChannels) return kLeastShmSlots;
  return std::clamp(32U / static_cast<std::uint32_t>(local_size), kLeastShmSlots, kShmSlots);
}

/// Size of the segment that each of `local_size` ranks makes, without the heap behind it.
[[nodiscard]] std::size_t segment_bytes(int local_size) noexcept;
/// Size of the file with the heap, which is address space only (shm_heap.h). Where files must be
/// smaller, the end is missing: first the heap, then channels from the last one on. The first
/// segment_base_bytes() are always needed.
[[nodiscard]] std::size_t segment_file_bytes(int local_size) noexcept;
/// Size of the first part of the file, which is used from the first operation on: everything before
/// channel 1.
[[nodiscard]] std::size_t segment_base_bytes(int local_size) noexcept;

/// The place of a channel or heap in a segment, in whole pages of 4096 bytes.
struct ShmExtent {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] ShmExtent channel_extent(int local_size, int channel) noexcept;
/// The place of the heap in a file of so many bytes; 0 bytes if the file ends before it.
[[nodiscard]] ShmExtent heap_extent(int local_size, std::size_t file_bytes) noexcept;
[[nodiscard]] inline ShmExtent heap_extent(int local_size) noexcept {
  return heap_extent(local_size, segment_file_bytes(local_size));
}

/// A counter that only grows (modulo 2^32), alone on its pair of cache lines.
struct alignas(128) ShmFlag {
  std::atomic<std::uint32_t> value;
};

/// True if `flag` has reached `target`. Differences stay far below 2^31.
[[nodiscard]] constexpr bool reached(std::uint32_t flag, std::uint32_t target) noexcept {
  return static_cast<std::int32_t>(flag - target) >= 0;
}

/// Reads a word of another process exactly once. That process may change it at any moment, and the
/// compiler may read a plain word twice; then the value that is used could differ from the one that
/// was checked.
template <typename Word>
[[nodiscard]] Word read_once(const Word& word) noexcept {
  static_assert(std::is_trivially_copyable_v<Word> && sizeof(Word) <= sizeof(std::uint64_t));
  return *static_cast<const volatile Word*>(&word);
}

/// A flag that also carries the tags of the last contributions. The tag of the contribution that
/// makes it `n` is at (n - 1) modulo the number of tags, a power of two, as counters wrap. A slower
/// peer reads those whose slots it still needs.
template <std::size_t kTags>
struct alignas(128) ShmTaggedFlag {
  static_assert(std::has_single_bit(kTags));
  std::atomic<std::uint32_t> value;
  std::array<std::atomic<std::uint64_t>, kTags> operations;  ///< stored before `value`
};

/// The owner's flags of one channel.
struct ShmFlags {
  ShmTaggedFlag<4> small;    ///< small operations whose contribution is in its slot
  ShmTaggedFlag<16> filled;  ///< chunks whose contribution is in its slot
  ShmFlag reduced;           ///< chunks whose part of this rank is reduced in place
  ShmFlag drained;           ///< chunks that the owner has finished reading, in all segments
  ShmFlag wants_drained;     ///< not 0: the owner may be asleep until others have drained
  static_assert(kShmSmallSlots < 4 && kShmSlots < 16, "each slot's tag stays as long as the slot");
};

/// The places of a contribution in the owner's heap, piece by piece. Such a contribution is not
/// copied into a slot, and results are written there too. Belongs to a slot, and is read and
/// written like it.
struct ShmPlaces {
  static constexpr std::size_t kMost = 62;
  std::uint64_t count;  ///< of pieces; 0: the contribution is in the slot
  std::array<std::uint64_t, kMost> offsets;
};

/// The owner's proposal in one round; see proposals.h.
struct alignas(128) ProposalSlot {
  std::atomic<std::uint32_t> round;  ///< stored last; a slot is used by every other round
  std::uint32_t count;               ///< 0: declined
  std::uint32_t key;
  std::uint32_t signature;
  std::uint64_t call;
  std::uint64_t position;
  std::array<std::byte, kProposalBytes> data;
};

struct ProposalBoard {
  alignas(128) std::atomic<std::uint32_t> closed;  ///< not 0: the owner would decline a proposal
  alignas(
      128) std::atomic<std::uint32_t> asked;  ///< set by others: the owner shall propose or decline
  std::array<ProposalSlot, 2> slots;
};

/// Head of a ring; its bytes follow. Counters are in bytes, modulo 2^32.
struct RingHead {
  alignas(128) std::atomic<std::uint32_t> written;  ///< by the owner of the segment
  std::atomic<std::uint32_t> closed;                ///< by the owner: nothing will follow
  std::atomic<std::uint32_t> wants_room;            ///< by the owner: ring its bell after reading
  alignas(128) std::atomic<std::uint32_t> read;     ///< by the reader
};

/// The cause of the owner's failure.
struct alignas(128) CauseRecord {
  static constexpr std::size_t kTextBytes = 1024;
  static constexpr std::size_t kTensorBytes = 256;
  static constexpr std::size_t kMissing = 32;
  std::atomic<std::uint32_t> state;  ///< 0 nothing, 1 being written, 2 complete
  std::uint32_t code;
  std::int32_t peer;
  std::uint32_t text_bytes;
  std::uint32_t tensor_bytes;
  std::uint32_t missing_count;
  double waited_s;
  std::array<std::int32_t, kMissing> missing;
  std::array<char, kTensorBytes> tensor;
  std::array<char, kTextBytes> text;
};

/// The time of the owner's last heartbeat, on its steady clock, in nanoseconds.
struct alignas(128) BeatWord {
  std::atomic<std::int64_t> at;  ///< 0: not yet
};

/// The proof that a peer reads the memory of the segment's owner; see peer_memory.h.
struct alignas(128) MemoryCard {
  std::atomic<std::uint32_t> state;  ///< 0: nobody may read; 1: complete
  std::uint64_t address;             ///< of the number, in the owner's memory
  std::array<std::uint64_t, 2> number;
};

/// A ring inside a segment.
struct RingMemory {
  RingHead* head = nullptr;
  std::span<std::byte> data;  ///< a power of two of bytes
};

/// Access to the parts of one segment. Does not own the memory.
class ShmView {
 public:
  ShmView() = default;
  /// `memory` is aligned to 128 bytes and holds at least segment_base_bytes(local_size). A channel
  /// may be used if it lies inside.
  ShmView(std::span<std::byte> memory, int local_size) noexcept;

  [[nodiscard]] BellWord& bell() const noexcept;
  [[nodiscard]] CauseRecord& cause() const noexcept;
  [[nodiscard]] BeatWord& beat() const noexcept;
  [[nodiscard]] MemoryCard& card() const noexcept;
  /// Control messages from the owner to the rank with that local index.
  [[nodiscard]] RingMemory messages_to(int local_index) const noexcept;
  /// Bytes of send and recv from the owner to the rank with that local index.
  [[nodiscard]] RingMemory pipe_to(int local_index) const noexcept;
  [[nodiscard]] ShmFlags& flags(int channel) const noexcept;
  [[nodiscard]] ProposalBoard& proposals(int channel) const noexcept;
  /// kShmSmallBytes for the small operation `sequence`. Two slots alternate.
  [[nodiscard]] std::byte* small_slot(int channel, std::uint32_t sequence) const noexcept;
  /// How many slots the channel has.
  [[nodiscard]] std::uint32_t slots(int channel) const noexcept {
    return shm_slots(local_size_, channel);
  }
  /// kShmSlotBytes; index 0 … slots(channel) - 1. The owner fills it; then others may put results
  /// into it (backends/shm/large.cpp).
  [[nodiscard]] std::byte* slot(int channel, std::uint32_t index) const noexcept;
  /// The places that belong to that slot.
  [[nodiscard]] ShmPlaces& places(int channel, std::uint32_t index) const noexcept;
  [[nodiscard]] int local_size() const noexcept { return local_size_; }

 private:
  [[nodiscard]] std::byte* channel_base(int channel) const noexcept;

  std::byte* base_ = nullptr;
  int local_size_ = 0;
};

/// The cause of a rank's failure, left in its segment for the other ranks of the host.
///
/// A rank that fails closes its connections, and its peers then fail as well. The cause is written
/// to the segment first, so that all of them report the first cause and not the first victim.
///
/// Fills the record of this rank's segment. Only the first call has an effect. Any thread. Long
/// texts are cut. Causes beneath the error become part of the text.
void publish_cause(const ShmView& own, const Error& error) noexcept;

/// The cause that the owner of that segment has left; none: it has not failed.
[[nodiscard]] std::optional<Error> read_cause(const ShmView& peer);

}  // namespace farandole

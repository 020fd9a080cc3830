/// Where everything lies inside a rank's shared segment.
///
/// Every rank of a host has one segment; all of them have the same layout, computed from the number
/// of ranks. The owner writes, the others read, except where a word says otherwise. All zero is the
/// valid initial state.
///
///     bell word | cause record | beat | offers | memory card | message rings, by reader |
///     byte pipes, by reader | channels | heap
///
/// "By reader": the ring at local index j carries what the owner of the segment says to rank j.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "transport/doorbell.h"

namespace rueda {

/// Ranks on one host that the layout can serve.
inline constexpr int kMaxLocalRanks = 512;
/// Process sets of a host that can have flags and slots of their own at a time; the world has
/// channel 0. Sets must not share any: their members finish at different times. A channel that no
/// set uses is address space only.
inline constexpr int kShmChannels = 128;
/// Slots of the large path. With three, a rank may fill one while the slower peers still read two.
inline constexpr std::uint32_t kShmSlots = 3;
/// Measured: from 128 to 256 KiB two members' chunks stay in second-level caches of 2 MiB; larger
/// ones cost more work, smaller ones more meetings.
inline constexpr std::size_t kShmSlotBytes = std::size_t{256} << 10;
inline constexpr std::uint32_t kShmSmallSlots = 2;
inline constexpr std::size_t kShmSmallBytes = std::size_t{64} << 10;
/// Of one offer: what it says beside its head, and a contribution of 64 KiB.
inline constexpr std::size_t kOfferBytes = (std::size_t{64} << 10) + 4192;

/// Size of the segment that each of `local_size` ranks makes, without the heap behind it.
[[nodiscard]] std::size_t segment_bytes(int local_size) noexcept;
/// Size of the file: with the heap, which is address space only (shm_heap.h). Where files must be
/// smaller the end is missing: first the heap, then channels from the last one on. Nothing before
/// segment_base_bytes() may be.
[[nodiscard]] std::size_t segment_file_bytes(int local_size) noexcept;
/// How much of it, from its start, is in use from the first operation on: all but the channels
/// beyond the world's.
[[nodiscard]] std::size_t segment_base_bytes(int local_size) noexcept;

/// Where a channel lies in a segment, in whole pages of 4096 bytes.
struct ShmExtent {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] ShmExtent channel_extent(int local_size, int channel) noexcept;
/// In a file of so many bytes; 0 bytes where it ends before.
[[nodiscard]] ShmExtent heap_extent(int local_size, std::size_t file_bytes) noexcept;
[[nodiscard]] inline ShmExtent heap_extent(int local_size) noexcept {
  return heap_extent(local_size, segment_file_bytes(local_size));
}

/// A number that only grows (modulo 2^32), alone on its pair of cache lines.
struct alignas(128) ShmFlag {
  std::atomic<std::uint32_t> value;
};

/// `flag` has come to `target` or beyond. Differences stay far below 2^31.
[[nodiscard]] constexpr bool reached(std::uint32_t flag, std::uint32_t target) noexcept {
  return static_cast<std::int32_t>(flag - target) >= 0;
}

/// A word of another process, which may change it at any moment: read once, so that what was
/// checked is what is used. (The compiler may read a plain one again.)
template <typename Word>
[[nodiscard]] Word read_once(const Word& word) noexcept {
  static_assert(std::is_trivially_copyable_v<Word> && sizeof(Word) <= sizeof(std::uint64_t));
  return *static_cast<const volatile Word*>(&word);
}

/// A flag that also says which operations the last contributions belong to: for the one that makes
/// it `n`, at (n - 1) modulo 4. No more than that are read at a time.
struct alignas(128) ShmTaggedFlag {
  static constexpr std::size_t kTags = 4;
  std::atomic<std::uint32_t> value;
  std::array<std::atomic<std::uint64_t>, kTags> operations;  ///< stored before `value`
};

/// What the owner of the segment says about one channel.
struct ShmFlags {
  ShmTaggedFlag small;    ///< small operations whose contribution is in its slot
  ShmTaggedFlag filled;   ///< chunks whose contribution is in its slot
  ShmFlag reduced;        ///< chunks of which the own part is reduced in place
  ShmFlag drained;        ///< chunks that the owner does not read any more, in any segment
  ShmFlag wants_drained;  ///< not 0: the owner may sleep until others have drained
};

/// Where a contribution lies that needs no copy into a slot: in the owner's heap, piece by piece.
/// Results go there, too. Belongs to a slot, and is read and written like it.
struct ShmPlaces {
  static constexpr std::size_t kMost = 62;
  std::uint64_t count;  ///< of pieces; 0: the contribution is in the slot
  std::array<std::uint64_t, kMost> offsets;
};

/// What the owner of the segment proposes in one round; see offers.h.
struct alignas(128) OfferSlot {
  std::atomic<std::uint32_t> round;  ///< stored last; a slot is used by every other round
  std::uint32_t count;               ///< 0: declined
  std::uint32_t key;
  std::uint32_t signature;
  std::uint64_t call;
  std::uint64_t position;
  std::array<std::byte, kOfferBytes> data;
};

struct OfferBoard {
  alignas(128) std::atomic<std::uint32_t> closed;  ///< not 0: the owner would decline
  alignas(128) std::atomic<std::uint32_t> asked;   ///< by others: decline what you do not offer
  std::array<OfferSlot, 2> slots;
};

/// Head of a ring; its bytes follow. Counters are in bytes, modulo 2^32.
struct RingHead {
  alignas(128) std::atomic<std::uint32_t> written;  ///< by the owner of the segment
  std::atomic<std::uint32_t> closed;                ///< by the owner: nothing will follow
  std::atomic<std::uint32_t> wants_room;         ///< by the owner: ring my bell when you have read
  alignas(128) std::atomic<std::uint32_t> read;  ///< by the reader
};

/// Why the owner of the segment gave up; see shm_cause.h.
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

/// When the owner of the segment gave a sign of life last, on its steady clock, in nanoseconds.
struct alignas(128) BeatWord {
  std::atomic<std::int64_t> at;  ///< 0: not yet
};

/// Where others find the proof that they read the memory of the segment's owner; see peer_memory.h.
struct alignas(128) MemoryCard {
  std::atomic<std::uint32_t> state;  ///< 0 nobody may read, 1 complete
  std::uint64_t address;             ///< of the number, in the owner's memory
  std::array<std::uint64_t, 2> number;
};

/// A ring inside a segment.
struct RingMemory {
  RingHead* head = nullptr;
  std::span<std::byte> data;  ///< a power of two of bytes
};

/// One segment, taken apart. Does not own the memory.
class ShmView {
 public:
  ShmView() = default;
  /// `memory` is aligned to 128 and holds at least segment_base_bytes(local_size); a channel may be
  /// used if it ends inside.
  ShmView(std::span<std::byte> memory, int local_size) noexcept;

  [[nodiscard]] BellWord& bell() const noexcept;
  [[nodiscard]] CauseRecord& cause() const noexcept;
  [[nodiscard]] BeatWord& beat() const noexcept;
  [[nodiscard]] OfferBoard& offers() const noexcept;
  [[nodiscard]] MemoryCard& card() const noexcept;
  /// Control messages from the owner to the rank with that local index.
  [[nodiscard]] RingMemory messages_to(int local_index) const noexcept;
  /// Bytes of send and recv from the owner to that rank.
  [[nodiscard]] RingMemory pipe_to(int local_index) const noexcept;
  [[nodiscard]] ShmFlags& flags(int channel) const noexcept;
  /// kShmSmallBytes for the small operation `sequence`: they alternate.
  [[nodiscard]] std::byte* small_slot(int channel, std::uint32_t sequence) const noexcept;
  /// kShmSlotBytes; index 0 … kShmSlots - 1. The owner fills it; then others may put results into
  /// it (backends/shm/large.cpp).
  [[nodiscard]] std::byte* slot(int channel, std::uint32_t index) const noexcept;
  /// The places that belong to that slot.
  [[nodiscard]] ShmPlaces& places(int channel, std::uint32_t index) const noexcept;
  [[nodiscard]] int local_size() const noexcept { return local_size_; }

 private:
  [[nodiscard]] std::byte* channel_base(int channel) const noexcept;

  std::byte* base_ = nullptr;
  int local_size_ = 0;
};

}  // namespace rueda

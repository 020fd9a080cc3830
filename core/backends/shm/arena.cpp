#include "backends/shm/arena.h"

#include <algorithm>
#include <cassert>

namespace farandole {
namespace {

constexpr std::size_t kLeastSmall = 4096;
/// Reading each other's memory costs two meetings and a system call for each member, and beyond the
/// caches it is slower than results written past them. Times the members, and by them.
constexpr std::size_t kLeastCrossMemoryEach = std::size_t{32} << 10;
constexpr std::size_t kMostCrossMemoryShared = std::size_t{16} << 20;
/// In a broadcast nobody else works while one member reads; more of them fill each other's way.
constexpr std::size_t kMostCrossMemoryBroadcast = std::size_t{128} << 10;
constexpr std::uint32_t kLongAgo = std::uint32_t{1} << 30;

/// On the small path everybody reads all contributions, so its border falls with the number of
/// members. Measured on two cores: 64 KiB for 2 members, 32 KiB for 4.
ShmTuning resolve(ShmTuning tuning, int size, std::uint32_t slots) noexcept {
  const auto members = static_cast<std::size_t>(std::max(size, 2));
  if (tuning.small_bytes == 0) {
    tuning.small_bytes = std::max(2 * kShmSmallBytes / members, kLeastSmall);
  }
  if (tuning.chunk_bytes == 0) tuning.chunk_bytes = kShmSlotBytes;
  if (tuning.slots == 0) tuning.slots = slots;
  tuning.slots = std::clamp<std::size_t>(tuning.slots, kLeastShmSlots, slots);
  tuning.small_bytes = std::min(tuning.small_bytes, kShmSmallBytes);
  if (tuning.cross_memory_bytes == 0) tuning.cross_memory_bytes = kLeastCrossMemoryEach * members;
  if (tuning.cross_memory_most_bytes == 0)
    tuning.cross_memory_most_bytes = kMostCrossMemoryShared / members;
  if (tuning.cross_memory_broadcast_bytes == 0 && members == 2) {
    tuning.cross_memory_broadcast_bytes = kMostCrossMemoryBroadcast;
  }
  // At least one element for everybody in every chunk.
  const std::size_t least = (members * sizeof(double) + 63) / 64 * 64;
  tuning.chunk_bytes = std::clamp<std::size_t>(tuning.chunk_bytes / 64 * 64, least, kShmSlotBytes);
  return tuning;
}

}  // namespace

ShmArena::ShmArena(const Members& members, const std::vector<ShmMember>& by_set_rank,
                   ShmChannelUse use, ShmTuning tuning)
    : self_(members.self),
      tuning_(resolve(tuning, members.size(), by_set_rank.front().segment.slots(use.channel))) {
  assert(by_set_rank.size() == members.ranks.size());
  members_.reserve(by_set_rank.size());
  for (std::size_t i = 0; i < by_set_rank.size(); ++i) {
    const ShmView& segment = by_set_rank[i].segment;
    Member member;
    member.flags = &segment.flags(use.channel);
    member.bell = by_set_rank[i].bell;
    for (std::uint32_t s = 0; s < kShmSmallSlots; ++s) {
      member.small[s] = segment.small_slot(use.channel, s);
    }
    for (std::uint32_t s = 0; s < slots(); ++s) {
      member.slots[s] = segment.slot(use.channel, s);
      member.places[s] = &segment.places(use.channel, s);
    }
    member.heap = by_set_rank[i].heap;
    member.cause = &segment.cause();
    member.rank = members.ranks[i];
    members_.push_back(member);
  }
  // Only this member writes its flags. Those of the others may be ahead already, because a fast
  // member may have started the first operation.
  const Member& own = at(self_);
  if (use.fresh) {
    for (const ShmMark mark :
         {ShmMark::Small, ShmMark::Filled, ShmMark::Reduced, ShmMark::Drained}) {
      flag(own, mark).store(0, std::memory_order_seq_cst);
    }
    set_wants_drained(false);  // the last user of the channel may have been stopped while it waited
  }
  small_ = flag(own, ShmMark::Small).load(std::memory_order_seq_cst);
  chunk_ = flag(own, ShmMark::Drained).load(std::memory_order_seq_cst);
  for (Member& member : members_) {
    member.seen = {small_, chunk_, chunk_, chunk_};
  }
}

std::atomic<std::uint32_t>& ShmArena::flag(const Member& member, ShmMark mark) noexcept {
  switch (mark) {
    case ShmMark::Small:
      return member.flags->small.value;
    case ShmMark::Filled:
      return member.flags->filled.value;
    case ShmMark::Reduced:
      return member.flags->reduced.value;
    case ShmMark::Drained:
      break;
  }
  return member.flags->drained.value;
}

Result<void> ShmArena::check(ShmMark mark, std::uint32_t target) const {
  for (int q = 0; q < size(); ++q) {
    if (same(q, mark, target)) continue;
    return mixed(q, mark, target);
  }
  return {};
}

void ShmArena::publish(ShmMark mark, std::uint32_t value) noexcept {
  if (mark == ShmMark::Small || mark == ShmMark::Filled) {
    tag(at(self_), mark, value).store(operation_, std::memory_order_relaxed);
  }
  flag(at(self_), mark).store(value, std::memory_order_seq_cst);
  for (int q = 0; q < size(); ++q) {
    if (q == self_) continue;
    const Member& member = at(q);
    if (mark == ShmMark::Drained &&
        member.flags->wants_drained.value.load(std::memory_order_seq_cst) == 0) {
      continue;
    }
    member.bell.ring();
  }
}

bool ShmArena::has_reached(int member, ShmMark mark, std::uint32_t target) noexcept {
  Member& other = members_[static_cast<std::size_t>(member)];
  std::uint32_t& seen = other.seen[static_cast<std::size_t>(mark)];
  if (reached(seen, target)) return true;
  // seq_cst: a member that is about to sleep stores that in its bell word first, and must not check
  // the flag before.
  seen = flag(other, mark).load(std::memory_order_seq_cst);
  return reached(seen, target);
}

bool ShmArena::all_reached(ShmMark mark, std::uint32_t target) noexcept {
  for (int q = 0; q < size(); ++q) {
    if (q != self_ && !has_reached(q, mark, target)) return false;
  }
  return true;
}

std::vector<Rank> ShmArena::behind(ShmMark mark, std::uint32_t target) const {
  std::vector<Rank> ranks;
  for (int q = 0; q < size(); ++q) {
    const std::uint32_t value = flag(at(q), mark).load(std::memory_order_seq_cst);
    if (q != self_ && !reached(value, target)) ranks.push_back(at(q).rank);
  }
  return ranks;
}

ShmArena::Chunks ShmArena::take_chunks(std::size_t count) noexcept {
  const Chunks taken{chunk_, slot_, static_cast<std::uint32_t>(count)};
  chunk_ += taken.count;
  slot_ = static_cast<std::uint32_t>((slot_ + count) % slots());
  return taken;
}

bool ShmArena::may_fill(const Chunks& chunks, std::size_t chunk) noexcept {
  const std::uint32_t target = chunks.after(chunk) - slots();
  if (!all_reached(ShmMark::Drained, target)) {
    if (wants_drained_) return false;
    set_wants_drained(true);  // then check again: a member that drains from now on sees the request
    if (!all_reached(ShmMark::Drained, target)) return false;
  }
  if (wants_drained_) set_wants_drained(false);
  return true;
}

std::vector<Rank> ShmArena::not_drained(const Chunks& chunks, std::size_t chunk) const {
  return behind(ShmMark::Drained, chunks.after(chunk) - slots());
}

void ShmArena::set_wants_drained(bool wanted) noexcept {
  wants_drained_ = wanted;
  at(self_).flags->wants_drained.value.store(wanted ? 1 : 0, std::memory_order_seq_cst);
}

std::vector<Rank> ShmArena::fallen() const {
  std::vector<Rank> ranks;
  for (const Member& member : members_) {
    if (member.cause->state.load(std::memory_order_seq_cst) != 0) ranks.push_back(member.rank);
  }
  return ranks;
}

void ShmArena::finish(const Chunks& chunks) noexcept {
  const std::uint32_t end = chunks.first + chunks.count;
  const Member& own = at(self_);
  // Release: a slower member may still be waiting for an earlier value, and finds this one.
  flag(own, ShmMark::Filled).store(end, std::memory_order_release);
  flag(own, ShmMark::Reduced).store(end, std::memory_order_release);
  if (wants_drained_) set_wants_drained(false);
  publish(ShmMark::Drained, end);
  for (Member& member : members_) {
    for (const ShmMark mark : {ShmMark::Filled, ShmMark::Reduced, ShmMark::Drained}) {
      std::uint32_t& seen = member.seen[static_cast<std::size_t>(mark)];
      // This value has not been read for long: read it before the difference wraps around.
      if (end - seen > kLongAgo) seen = flag(member, mark).load(std::memory_order_seq_cst);
    }
  }
}

}  // namespace farandole

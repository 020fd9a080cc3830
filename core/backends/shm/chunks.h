/// Operations in which every member fills and drains every chunk.
#pragma once

#include <cstddef>
#include <vector>

#include "backends/operation.h"
#include "backends/shm/arena.h"

namespace farandole {

/// Every chunk goes through two stations, and stations of different chunks overlap:
///
///   fill    data for other members is copied into this member's slot
///   drain   data for this member is copied out of all members' slots
///
/// Draining chunk k needs chunk k of all members; filling it needs a slot that nobody reads any
/// more.
class ShmChunks : public Operation {
 public:
  Result<Step> step() final {
    if (chunks_ == 0) return Step::Done;
    if (!taken_) {
      range_ = arena_.take_chunks(chunks_);
      taken_ = true;
    }
    // The oldest chunk first: that is what the others wait for, and what is still in the cache.
    if (drained_ < filled_ && arena_.all_reached(ShmMark::Filled, range_.after(drained_))) {
      if (auto fine = arena_.check(ShmMark::Filled, range_.after(drained_)); !fine) {
        return std::move(fine).error();
      }
      drain(drained_);
      ++drained_;
      if (drained_ < chunks_) {
        arena_.publish(ShmMark::Drained, range_.after(drained_ - 1));
        return Step::Advanced;
      }
      arena_.finish(range_);
      return Step::Done;
    }
    // The own slot is drained by its owner too: others may have passed a chunk that was not yet
    // complete when this step looked.
    if (filled_ < chunks_ && filled_ < drained_ + kAhead && arena_.may_fill(range_, filled_)) {
      fill(filled_, arena_.slot(arena_.self(), range_, filled_));
      arena_.publish(ShmMark::Filled, range_.after(filled_));
      ++filled_;
      return Step::Advanced;
    }
    return Step::Blocked;
  }

  std::vector<Rank> waiting_for() const final {
    if (drained_ < filled_) return arena_.behind(ShmMark::Filled, range_.after(drained_));
    return taken_ ? arena_.not_drained(range_, filled_) : std::vector<Rank>();
  }

 protected:
  explicit ShmChunks(ShmArena& arena) noexcept : arena_(arena) {}

  /// In the constructor: how many chunks there are, the same number on all members.
  void set_chunks(std::size_t chunks) noexcept { chunks_ = chunks; }
  [[nodiscard]] ShmArena& arena() const noexcept { return arena_; }
  /// A member's slot of a chunk that is being drained.
  [[nodiscard]] const std::byte* slot_of(int member, std::size_t chunk) const noexcept {
    return arena_.slot(member, range_, chunk);
  }

 private:
  virtual void fill(std::size_t chunk, std::byte* slot) = 0;
  virtual void drain(std::size_t chunk) = 0;

  /// Chunks that a member has filled and not drained: more would have left its own cache.
  static constexpr std::size_t kAhead = kLeastShmSlots;

  ShmArena& arena_;
  std::size_t chunks_ = 0;
  bool taken_ = false;
  ShmArena::Chunks range_;
  std::size_t filled_ = 0;
  std::size_t drained_ = 0;
};

}  // namespace farandole

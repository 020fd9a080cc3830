#include "backends/shm/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "kernels/copy.h"
#include "rounding.h"

namespace farandole {
namespace {

/// Slices of a chunk end on cache lines (as far as the slots are concerned).
constexpr std::size_t kLine = 64;

/// What is reduced in one go before it is handed on: stays in the first-level cache.
constexpr std::size_t kBlockBytes = 8192;

/// Every chunk goes through three stations, and stations of different chunks overlap:
///
///   fill      what the others will reduce is copied into the own slot (packed, prescaled)
///   reduce    the own slice, over everybody's contribution: into the own output, and into every
///             other member's slot, over what was contributed there
///   copy out  the slices that the others have reduced, from the own slot into the own output
///
/// Each station of chunk k needs the station before it of chunk k on all members. The own slice is
/// read where it lies (unless it is scaled), so only (p-1)/p of the input is copied. Main memory
/// sees each byte once in and once out, because the chunks under way fit into the caches.
///
/// Between the cores a line goes to the member that reduces it and back, and both write what they
/// have just read. If the result were put into the reducer's slot instead, twice as many lines
/// would have to be taken from a core that had read them, for nothing but to be overwritten.
///
/// A chunk that lies in the own heap, and is not scaled before, is not copied at all: *fill* says
/// where it is, the others reduce it there, and there is nothing to copy out. Each member decides
/// that for each of its chunks alone; the others read it with the chunk. The same order of the same
/// operations gives the same bits.
///
/// Its owner may be stopped by a failure elsewhere meanwhile, and use that memory for something
/// else. It leaves the cause before; so an operation in which a chunk lay in a heap only ends if
/// all members stand when everything has been read.
///
/// Who reads or writes a slot: its owner in fill and copy out, the others in reduce between these.
/// So once the owner has copied chunk k out, nobody touches its slot any more: within an operation
/// filling needs no leave. Only the first chunks must wait for what other operations did.
class LargeAllreduce final : public Operation {
 public:
  LargeAllreduce(ShmArena& arena, std::span<const Piece> pieces, const Reduction& reduction)
      : arena_(arena),
        pieces_(pieces, reduction.dtype),
        reduction_(reduction),
        element_(size_of(reduction.dtype)),
        members_(static_cast<std::size_t>(arena.size())),
        self_(static_cast<std::size_t>(arena.self())),
        own_in_place_(reduction.prescale == 1.0),
        contributions_(members_) {
    const std::size_t most = arena.tuning().chunk_bytes / element_;
    // Chunks of nearly equal size: a short last one would cost a meeting for little.
    const std::size_t chunks = ceil_div(pieces_.count(), most);
    const std::size_t even = ceil_div(ceil_div(pieces_.count(), chunks) * element_, kLine) * kLine;
    per_chunk_ = std::min(most, even / element_);
    chunks_ = ceil_div(pieces_.count(), per_chunk_);
    streaming_ = pieces_.bytes() >= streaming_bytes();
    find_in_heap();
  }

  std::string_view path() const override { return in_heap_ ? "shm.heap" : std::string_view(); }

  Result<Step> step() override {
    if (!taken_) {
      range_ = arena_.take_chunks(chunks_);
      taken_ = true;
    }
    // The oldest chunk first: that is what the others wait for, and what is still in the cache.
    if (copied_ < reduced_ && copy_out()) {
      if (copied_ < chunks_) return Step::Advanced;
      if (lent_) fallen_ = arena_.fallen();
      if (!fallen_.empty()) return Step::Blocked;  // until the failure detector reports it
      arena_.finish(range_);
      return Step::Done;
    }
    if (reduced_ < filled_ && arena_.all_reached(ShmMark::Filled, range_.after(reduced_))) {
      if (auto fine = arena_.check(ShmMark::Filled, range_.after(reduced_)); !fine) {
        return std::move(fine).error();
      }
      if (auto reduced = reduce_own_slice(); !reduced) return std::move(reduced).error();
      return Step::Advanced;
    }
    if (filled_ < chunks_ && filled_ < copied_ + kAhead &&
        (filled_ >= arena_.slots() || arena_.may_fill(range_, filled_))) {
      fill();
      return Step::Advanced;
    }
    return Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override {
    if (!fallen_.empty()) return fallen_;
    if (copied_ < reduced_) return arena_.behind(ShmMark::Reduced, range_.after(copied_));
    if (reduced_ < filled_) return arena_.behind(ShmMark::Filled, range_.after(reduced_));
    return taken_ ? arena_.not_drained(range_, filled_) : std::vector<Rank>();
  }

 private:
  // Chunks under way: enough to overlap, few to stay in cache. A slot is free when that many chunks
  // later are filled.
  static constexpr std::size_t kAhead = 2;
  static_assert(kAhead <= kLeastShmSlots);

  static constexpr std::uint64_t kPrivate = ~std::uint64_t{0};

  struct Slice {
    std::size_t begin, count;  // elements, from the start of the chunk
  };

  [[nodiscard]] std::size_t chunk_begin(std::size_t chunk) const { return chunk * per_chunk_; }
  [[nodiscard]] std::size_t chunk_count(std::size_t chunk) const {
    return std::min(per_chunk_, pieces_.count() - chunk_begin(chunk));
  }
  [[nodiscard]] Slice slice(std::size_t chunk, std::size_t member) const {
    const std::size_t count = chunk_count(chunk);
    const std::size_t lines = ceil_div(ceil_div(count, members_) * element_, kLine);
    const std::size_t per_member = lines * kLine / element_;
    const std::size_t begin = std::min(count, member * per_member);
    return {begin, std::min(per_member, count - begin)};
  }
  [[nodiscard]] std::byte* slot(std::size_t member, std::size_t chunk) const {
    return arena_.slot(static_cast<int>(member), range_, chunk);
  }

  /// Which pieces others can reduce where they lie.
  void find_in_heap() {
    const ShmHeap* const heap = arena_.heap(arena_.self());
    if (heap == nullptr || !own_in_place_) return;
    bool all = true;
    bool any = false;
    for (const Piece& piece : pieces_.pieces()) {
      const auto place = piece.in == piece.out ? heap->find(piece.in, piece.count * element_)
                                               : std::optional<std::uint64_t>();
      places_.push_back(place.value_or(kPrivate));
      all = all && place;
      any = any || place;
    }
    if (!any) places_.clear();
    in_heap_ = all;
  }

  /// Says where the next chunk lies instead of copying it; false if that cannot be done.
  [[nodiscard]] bool leave_in_place() {
    ShmPlaces& own = arena_.places(arena_.self(), range_, filled_);
    own.count = 0;
    if (places_.empty()) return false;
    const std::size_t begin = chunk_begin(filled_);
    const std::size_t end = begin + chunk_count(filled_);
    std::size_t used = 0;
    for (std::size_t piece = pieces_.find(begin);
         piece < places_.size() && pieces_.start(piece) < end; ++piece) {
      if (places_[piece] == kPrivate || used == ShmPlaces::kMost) return false;
      const std::size_t start = pieces_.start(piece);
      own.offsets[used++] = places_[piece] + (std::max(begin, start) - start) * element_;
    }
    own.count = used;
    return true;
  }

  void fill() {
    if (!leave_in_place()) copy_in();
    arena_.publish(ShmMark::Filled, range_.after(filled_));
    ++filled_;
  }

  void copy_in() {
    std::byte* const own = slot(self_, filled_);
    const std::size_t begin = chunk_begin(filled_);
    const std::size_t count = chunk_count(filled_);
    const auto pack = [&](std::size_t from, std::size_t elements) {
      if (elements == 0) return;
      pieces_.pack(own + from * element_, begin + from, elements, reduction_.prescale);
    };
    if (own_in_place_) {
      const Slice mine = slice(filled_, self_);
      pack(0, mine.begin);
      pack(mine.begin + mine.count, count - mine.begin - mine.count);
    } else {
      pack(0, count);
    }
  }

  Result<void> reduce_own_slice() {
    for (int member = 0; member < arena_.size(); ++member) {
      lent_ = lent_ || read_once(arena_.places(member, range_, reduced_).count) != 0;
    }
    const Slice mine = slice(reduced_, self_);
    if (mine.count > 0) {
      const std::size_t begin = chunk_begin(reduced_);
      std::size_t piece = pieces_.find(begin + mine.begin);
      std::size_t in_chunk = piece - pieces_.find(begin);  // the how-manieth of this chunk
      const std::size_t end = begin + mine.begin + mine.count;
      for (std::size_t at = begin + mine.begin; at < end; ++piece, ++in_chunk) {
        const std::size_t start = pieces_.start(piece);
        const Piece& whole = pieces_.pieces()[piece];
        const std::size_t count = std::min(start + whole.count, end) - at;
        const Part part{.piece = whole,
                        .first = at - start,
                        .count = count,
                        .in_chunk = at - begin,
                        .place = in_chunk,
                        .in_place = at - std::max(start, begin)};
        if (auto reduced = reduce_part(part); !reduced) return reduced;
        at += count;
      }
    }
    arena_.publish(ShmMark::Reduced, range_.after(reduced_));
    ++reduced_;
    return {};
  }

  /// Elements of one piece and one chunk.
  struct Part {
    const Piece& piece;
    std::size_t first, count;  ///< in the piece
    std::size_t in_chunk;      ///< where they begin in the chunk
    std::size_t place;         ///< the how-manieth piece of the chunk it is
    std::size_t in_place;      ///< where they begin in what the chunk has of the piece
  };

  Result<void> reduce_part(const Part& part) {
    for (std::size_t q = 0; q < members_; ++q) {
      contributions_[q] = slot(q, reduced_) + part.in_chunk * element_;
      const auto member = static_cast<int>(q);
      const ShmPlaces& places = arena_.places(member, range_, reduced_);
      if (q == self_) continue;
      const std::uint64_t count = read_once(places.count);
      if (count == 0) continue;
      ShmHeap* const heap = arena_.heap(member);
      if (heap == nullptr || part.place >= std::min<std::uint64_t>(count, ShmPlaces::kMost)) {
        return Error{.message = "A chunk in shared memory whose place is unknown",
                     .peer = arena_.rank(member)};
      }
      const std::uint64_t offset = read_once(places.offsets[part.place]);
      auto found = heap->at(offset + part.in_place * element_, part.count * element_);
      if (!found) return std::move(found).error();
      contributions_[q] = *found;
    }
    // Two members need no second pass over a block.
    const bool passing = members_ > 2 || streams(part.piece);
    const std::size_t step = passing ? kBlockBytes / element_ : part.count;
    for (std::size_t at = 0; at < part.count; at += step) {
      reduce_block(part, at, std::min(step, part.count - at));
    }
    return {};
  }

  /// Elements of a part: `contributions_` says where the others have its beginning.
  void reduce_block(const Part& part, std::size_t at, std::size_t count) {
    const Piece& piece = part.piece;
    const std::size_t offset = at * element_;
    const std::size_t bytes = count * element_;
    std::array<const std::byte*, kMaxLocalRanks> sources;
    for (std::size_t q = 0; q < members_; ++q) sources[q] = contributions_[q] + offset;
    const std::size_t first = part.first + at;
    if (own_in_place_) sources[self_] = piece.in + first * element_;
    const std::span all(sources.data(), members_);
    std::byte* const out = piece.out + first * element_;
    std::byte* const result = contributions_[(self_ + 1) % members_] + offset;
    if (streams(piece)) {
      reduce(result, all, count, reduction_.dtype, reduction_.op, reduction_.postscale);
      copy_streaming(out, result, bytes);
    } else {
      reduce(out, all, count, reduction_.dtype, reduction_.op, reduction_.postscale, result);
    }
    for (std::size_t d = 2; d < members_; ++d) {
      std::memcpy(contributions_[(self_ + d) % members_] + offset, result, bytes);
    }
  }

  /// In place the lines of the output are here already.
  [[nodiscard]] bool streams(const Piece& piece) const {
    return streaming_ && piece.out != piece.in;
  }

  /// Takes the slices that are ready, in turn; true if there were any.
  bool copy_out() {
    bool moved = false;
    for (; next_peer_ < members_; ++next_peer_) {
      const std::size_t peer = (self_ + next_peer_) % members_;
      const auto reduced = range_.after(copied_);
      if (!arena_.has_reached(static_cast<int>(peer), ShmMark::Reduced, reduced)) return moved;
      const Slice theirs = slice(copied_, peer);
      if (theirs.count > 0 && arena_.places(arena_.self(), range_, copied_).count == 0) {
        pieces_.for_each(
            chunk_begin(copied_) + theirs.begin, theirs.count,
            [&](const Piece& piece, std::size_t first, std::size_t count, std::size_t before) {
              farandole::copy_out(piece.out + first * element_,
                                  slot(self_, copied_) + (theirs.begin + before) * element_,
                                  count * element_, streams(piece));
            });
      }
      moved = true;
    }
    ++copied_;
    next_peer_ = 1;
    if (copied_ < chunks_) arena_.publish(ShmMark::Drained, range_.after(copied_ - 1));
    return true;
  }

  ShmArena& arena_;
  PieceArray pieces_;
  Reduction reduction_;
  std::size_t element_;
  std::size_t members_;
  std::size_t self_;
  bool own_in_place_;
  bool streaming_ = false;
  std::size_t per_chunk_ = 0;  // elements
  std::size_t chunks_ = 0;

  bool taken_ = false;
  ShmArena::Chunks range_;
  std::size_t filled_ = 0;
  std::size_t reduced_ = 0;
  std::size_t copied_ = 0;
  std::vector<std::uint64_t> places_;      // of the pieces in the own heap; empty: of none
  bool in_heap_ = false;                   // all of them
  bool lent_ = false;                      // a chunk of some member lies in its heap
  std::vector<Rank> fallen_;               // whose memory may have held something else
  std::vector<std::byte*> contributions_;  // by member: where what is being reduced lies
  std::size_t next_peer_ = 1;  // distance to the member whose slice of chunk copied_ comes next
};

}  // namespace

std::unique_ptr<Operation> large_allreduce(ShmArena& arena, std::span<const Piece> pieces,
                                           const Reduction& reduction) {
  return std::make_unique<LargeAllreduce>(arena, pieces, reduction);
}

}  // namespace farandole

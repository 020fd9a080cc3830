#include <algorithm>
#include <array>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "backends/shm/chunks.h"
#include "backends/shm/collectives.h"
#include "rounding.h"

namespace farandole {
namespace {

constexpr std::size_t kLine = 64;

/// Elements of every part that a chunk carries; on whole cache lines where there is room.
std::size_t share_of(std::size_t chunk_bytes, std::size_t members, std::size_t element) noexcept {
  const std::size_t bytes = chunk_bytes / members;
  return (bytes >= kLine ? bytes / kLine * kLine : bytes) / element;
}

/// Every chunk carries equally much of every member's part, so that all of them reduce all the
/// time: each its own, over everybody's slot, straight into its output. The own contribution is
/// read where it lies (unless it is scaled), so (p-1)/p of the input is copied once, and nothing is
/// copied out.
class LargeReducescatter final : public ShmChunks {
 public:
  LargeReducescatter(ShmArena& arena, std::span<const ScatterPiece> pieces,
                     const Reduction& reduction)
      : ShmChunks(arena),
        reduction_(reduction),
        element_(size_of(reduction.dtype)),
        members_(static_cast<std::size_t>(arena.size())),
        self_(static_cast<std::size_t>(arena.self())),
        own_in_place_(reduction.prescale == 1.0),
        parts_(parts_by_owner(pieces, reduction.dtype, arena.size(), arena.self())),
        share_(share_of(arena.tuning().chunk_bytes, members_, element_)) {
    set_chunks(ceil_div(longest(parts_), share_));
  }

 private:
  [[nodiscard]] std::size_t count(std::size_t member, std::size_t chunk) const {
    const std::size_t whole = parts_[member].count();
    return std::min(share_, whole - std::min(whole, chunk * share_));
  }

  void fill(std::size_t chunk, std::byte* slot) override {
    for (std::size_t member = 0; member < members_; ++member) {
      if (member == self_ && own_in_place_) continue;
      const std::size_t elements = count(member, chunk);
      if (elements == 0) continue;
      parts_[member].pack(slot + member * share_ * element_, chunk * share_, elements,
                          reduction_.prescale, arena().copies());
    }
  }

  void drain(std::size_t chunk) override {
    const std::size_t elements = count(self_, chunk);
    if (elements == 0) return;
    std::array<const std::byte*, kMaxLocalRanks> sources;
    parts_[self_].for_each(
        chunk * share_, elements,
        [&](const Piece& piece, std::size_t first, std::size_t part, std::size_t before) {
          const std::size_t offset = (self_ * share_ + before) * element_;
          for (std::size_t q = 0; q < members_; ++q) {
            sources[q] = slot_of(static_cast<int>(q), chunk) + offset;
          }
          if (own_in_place_) sources[self_] = piece.in + first * element_;
          reduce(piece.out + first * element_, std::span(sources.data(), members_), part,
                 reduction_.dtype, reduction_.op, reduction_.postscale);
        });
  }

  const Reduction reduction_;
  const std::size_t element_;  // bytes
  const std::size_t members_;
  const std::size_t self_;
  const bool own_in_place_;
  const std::vector<PieceArray> parts_;  // by owner
  const std::size_t share_;              // elements
};

}  // namespace

std::unique_ptr<Operation> large_reducescatter(ShmArena& arena,
                                               std::span<const ScatterPiece> pieces,
                                               const Reduction& reduction) {
  return std::make_unique<LargeReducescatter>(arena, pieces, reduction);
}

}  // namespace farandole

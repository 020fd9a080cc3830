/// Pieces of fused reductions: as one array, taken apart by owner, and scaled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "kernels/peer_copies.h"

namespace farandole {

class PieceArray {
 public:
  PieceArray(std::span<const Piece> pieces, DType dtype);

  [[nodiscard]] std::size_t count() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return count() * element_; }
  /// Those with elements, in order.
  [[nodiscard]] std::span<const Piece> pieces() const noexcept { return pieces_; }
  /// The piece that holds element `begin`, which exists.
  [[nodiscard]] std::size_t find(std::size_t begin) const;
  /// The first element of a piece.
  [[nodiscard]] std::size_t start(std::size_t piece) const {
    return piece == 0 ? 0 : ends_[piece - 1];
  }

  /// Where elements [begin, begin + count) lie if they are in one piece; null if they are not.
  [[nodiscard]] const std::byte* contiguous_in(std::size_t begin, std::size_t count) const;
  [[nodiscard]] std::byte* contiguous_out(std::size_t begin, std::size_t count) const;

  /// packed = prescale * in[begin, begin + count); `packed` may be memory that others have read
  /// last.
  void pack(std::byte* packed, std::size_t begin, std::size_t count, double prescale) const;
  /// The same into memory that others read next. What is scaled does not go through `copies`.
  void pack(std::byte* packed, std::size_t begin, std::size_t count, double prescale,
            PeerCopies& copies) const;
  /// out[begin, begin + count) = packed
  void unpack(const std::byte* packed, std::size_t begin, std::size_t count) const;

  /// Calls visit(piece, first element in it, elements, elements before it in the range) for every
  /// piece that has part in the elements [begin, begin + count).
  template <typename Visit>
  void for_each(std::size_t begin, std::size_t count, Visit visit) const {
    std::size_t before = 0;
    for (std::size_t piece = find(begin); before < count; ++piece) {
      const std::size_t first = begin + before - start(piece);
      const std::size_t elements = std::min(pieces_[piece].count - first, count - before);
      visit(pieces_[piece], first, elements, before);
      before += elements;
    }
  }

 private:
  template <typename Copy>
  void pack_by(std::byte* packed, std::size_t begin, std::size_t count, double prescale,
               const Copy& copy) const;

  DType dtype_;
  std::size_t element_;        // bytes
  std::vector<Piece> pieces_;  // without empty ones
  std::vector<std::size_t> ends_;
};

/// Pieces whose parts go to several members, taken apart by owner: what one member gets, over all
/// pieces, is one array. Inputs are there for all members, outputs for
/// `self` only.
[[nodiscard]] inline std::vector<PieceArray> parts_by_owner(std::span<const ScatterPiece> pieces,
                                                            DType dtype, int members, int self) {
  const std::size_t element = size_of(dtype);
  std::vector<PieceArray> parts;
  parts.reserve(static_cast<std::size_t>(members));
  std::vector<Piece> own;
  for (std::size_t m = 0; m < static_cast<std::size_t>(members); ++m) {
    own.clear();
    for (const ScatterPiece& piece : pieces) {
      const std::size_t count = piece.begins[m + 1] - piece.begins[m];
      if (count == 0) continue;
      std::byte* const out = m == static_cast<std::size_t>(self) ? piece.out : nullptr;
      own.push_back({piece.in + piece.begins[m] * element, out, count});
    }
    parts.emplace_back(own, dtype);
  }
  return parts;
}

/// Elements of the longest part.
[[nodiscard]] inline std::size_t longest(const std::vector<PieceArray>& parts) {
  std::size_t count = 0;
  for (const PieceArray& part : parts) count = std::max(count, part.count());
  return count;
}

/// A reduction over one member: it only scales.
///
/// out = postscale * (prescale * in), rounded twice: where a reduction over more members rounds.
[[nodiscard]] std::unique_ptr<Operation> scale_pieces(std::span<const Piece> pieces,
                                                      const Reduction& reduction);

}  // namespace farandole

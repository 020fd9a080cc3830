/// Pieces whose parts go to several members, taken apart by owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/buffers/piece_array.h"

namespace farandole {

/// What one member gets, over all pieces: one array. Inputs are there for all members, outputs for
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

}  // namespace farandole

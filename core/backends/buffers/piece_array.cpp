#include "backends/buffers/piece_array.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/copy.h"

namespace farandole {

PieceArray::PieceArray(std::span<const Piece> pieces, DType dtype)
    : dtype_(dtype), element_(size_of(dtype)) {
  pieces_.reserve(pieces.size());
  ends_.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    if (piece.count == 0) continue;
    ends_.push_back(count() + piece.count);
    pieces_.push_back(piece);
  }
}

std::size_t PieceArray::find(std::size_t begin) const {
  return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) -
                                  ends_.begin());
}

const std::byte* PieceArray::contiguous_in(std::size_t begin, std::size_t count) const {
  const std::size_t piece = find(begin);
  if (begin + count > ends_[piece]) return nullptr;
  return pieces_[piece].in + (begin - start(piece)) * element_;
}

std::byte* PieceArray::contiguous_out(std::size_t begin, std::size_t count) const {
  const std::size_t piece = find(begin);
  if (begin + count > ends_[piece]) return nullptr;
  return pieces_[piece].out + (begin - start(piece)) * element_;
}

template <typename Copy>
void PieceArray::pack_by(std::byte* packed, std::size_t begin, std::size_t count, double prescale,
                         const Copy& copy) const {
  for_each(begin, count,
           [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t before) {
             std::byte* const to = packed + before * element_;
             const std::byte* const from = piece.in + first * element_;
             if (prescale == 1.0) {
               copy(to, from, elements * element_);
             } else {
               scale_copy(to, from, elements, dtype_, prescale);
             }
           });
}

void PieceArray::pack(std::byte* packed, std::size_t begin, std::size_t count,
                      double prescale) const {
  pack_by(packed, begin, count, prescale, copy_to_peers);
}

void PieceArray::pack(std::byte* packed, std::size_t begin, std::size_t count, double prescale,
                      PeerCopies& copies) const {
  pack_by(packed, begin, count, prescale,
          [&](std::byte* to, const std::byte* from, std::size_t bytes) {
            copies.copy(to, from, bytes);
          });
}

void PieceArray::unpack(const std::byte* packed, std::size_t begin, std::size_t count) const {
  for_each(begin, count,
           [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t before) {
             std::memcpy(piece.out + first * element_, packed + before * element_,
                         elements * element_);
           });
}

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

class Scale final : public Operation {
 public:
  Scale(std::span<const Piece> pieces, const Reduction& reduction)
      : pieces_(pieces.begin(), pieces.end()), reduction_(reduction) {}

  Result<Step> step() override {
    const std::size_t element = size_of(reduction_.dtype);
    std::size_t budget = kChunk / element;
    for (; piece_ < pieces_.size(); ++piece_, done_ = 0) {
      const Piece& piece = pieces_[piece_];
      if (piece.in == piece.out && reduction_.prescale == 1.0 && reduction_.postscale == 1.0) {
        continue;
      }
      const std::size_t now = std::min(budget, piece.count - done_);
      std::byte* out = piece.out + done_ * element;
      scale_copy(out, piece.in + done_ * element, now, reduction_.dtype, reduction_.prescale);
      if (reduction_.postscale != 1.0) {
        scale_copy(out, out, now, reduction_.dtype, reduction_.postscale);
      }
      done_ += now;
      budget -= now;
      if (done_ != piece.count) return Step::Advanced;
    }
    return Step::Done;
  }

 private:
  const std::vector<Piece> pieces_;
  const Reduction reduction_;
  std::size_t piece_ = 0;
  std::size_t done_ = 0;  // elements of that piece
};

}  // namespace

std::unique_ptr<Operation> scale_pieces(std::span<const Piece> pieces, const Reduction& reduction) {
  return std::make_unique<Scale>(pieces, reduction);
}

}  // namespace farandole

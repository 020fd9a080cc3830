#include "backends/algorithms/scale_pieces.h"

#include <algorithm>
#include <vector>

namespace farandole {
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

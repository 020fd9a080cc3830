#include "collectives/integer_average.h"

#include <algorithm>
#include <utility>

#include "kernels/integer_average.h"

namespace farandole {

namespace {

/// So many elements are summed at a time: their sums stay in a cache, and need little memory
/// however long the batch is.
constexpr std::size_t kWindow = std::size_t{256} << 10;

class IntegerAverage final : public Operation {
 public:
  IntegerAverage(Backend& backend, std::vector<AveragedPiece> pieces, const Reduction& reduction)
      : backend_(backend),
        pieces_(std::move(pieces)),
        reduction_(reduction),
        element_(size_of(reduction.dtype)) {
    for (const AveragedPiece& piece : pieces_) count_ += piece.count;
    const std::size_t window = std::min(kWindow, count_) * wide_parts(reduction.dtype);
    path_ = backend.path(Kind::Allreduce, window * size_of(kWideType));
    wide_ = std::make_unique_for_overwrite<std::byte[]>(window * size_of(kWideType));
  }

  Result<Step> step() override {
    if (!sum_) {
      if (end_ == count_) return Step::Done;
      begin_ = end_;
      end_ = std::min(begin_ + kWindow, count_);
      fill();
      const Piece sums{wide_.get(), wide_.get(), (end_ - begin_) * wide_parts(reduction_.dtype)};
      sum_ = backend_.start(Allreduce{{&sums, 1}, {.dtype = kWideType}});
      return Step::Advanced;
    }
    auto step = sum_->step();
    if (!step || *step != Step::Done) return step;
    sum_.reset();
    take();
    return end_ == count_ ? Step::Done : Step::Advanced;
  }

  std::vector<Rank> waiting_for() const override {
    return sum_ ? sum_->waiting_for() : std::vector<Rank>();
  }
  std::optional<TimePoint> due() const override { return sum_ ? sum_->due() : std::nullopt; }
  std::string_view path() const override { return path_; }

 private:
  /// Calls visit(piece, first element of it, elements, elements before it in the window) for every
  /// piece that has part in the window.
  template <typename Visit>
  void for_each(Visit visit) const {
    std::size_t start = 0;
    for (const AveragedPiece& piece : pieces_) {
      const std::size_t first = std::max(begin_, start);
      const std::size_t last = std::min(end_, start + piece.count);
      if (first < last) visit(piece, first - start, last - first, first - begin_);
      start += piece.count;
    }
  }

  void fill() {
    for_each([this](const AveragedPiece& piece, std::size_t first, std::size_t elements,
                    std::size_t before) {
      widen(wide_.get() + before * size_of(kWideType), end_ - begin_, piece.in + first * element_,
            elements, reduction_.dtype, reduction_.prescale);
    });
  }

  void take() {
    for_each([this](const AveragedPiece& piece, std::size_t first, std::size_t elements,
                    std::size_t before) {
      const std::size_t from = std::max(first, piece.begin);
      const std::size_t to = std::min(first + elements, piece.end);
      if (from >= to) return;
      narrow(piece.out + (from - piece.begin) * element_,
             wide_.get() + (before + from - first) * size_of(kWideType), end_ - begin_, to - from,
             reduction_.dtype, reduction_.postscale);
    });
  }

  Backend& backend_;
  const std::vector<AveragedPiece> pieces_;
  const Reduction reduction_;
  const std::size_t element_;  // bytes
  std::string_view path_;
  std::size_t count_ = 0;
  std::size_t begin_ = 0;  // of the window
  std::size_t end_ = 0;
  std::unique_ptr<std::byte[]> wide_;  // the sums of the window
  std::unique_ptr<Operation> sum_;     // last: it ends before the memory it uses
};

}  // namespace

bool averages_integers(const Signature& signature, int members) noexcept {
  return signature.op == ReduceOp::Average && is_integer(signature.dtype) && members > 1;
}

std::unique_ptr<Operation> average_of_integers(Backend& backend, std::vector<AveragedPiece> pieces,
                                               const Reduction& reduction) {
  return std::make_unique<IntegerAverage>(backend, std::move(pieces), reduction);
}

}  // namespace farandole

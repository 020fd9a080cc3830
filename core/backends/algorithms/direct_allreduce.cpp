#include "backends/algorithms/direct.h"

#include <algorithm>
#include <array>
#include <vector>

#include "backends/algorithms/transfers.h"
#include "backends/buffers/piece_array.h"
#include "rounding.h"

namespace farandole {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{16} << 10;
// Small enough that windows in flight stay in the cache. Measured over loopback: 64 MiB took 115 ms
// with windows of 128 KiB, and 120 … 150 ms with 1 MiB (two ranks); 32 MiB took 80 and 240 ms (four
// ranks). Large enough that two windows fill a link of 10 Gbit/s with a round trip of 200 µs.
constexpr std::size_t kWindowBytes = std::size_t{128} << 10;
constexpr std::size_t kMaxWindowBytes = std::size_t{1} << 20;
constexpr std::size_t kSliceBytes =
    std::size_t{32} << 10;  // below this size, a copy is cheaper than separate messages
constexpr std::size_t kSmallStagingBytes = std::size_t{2} << 20;

/// Windows 0, 1, 2 … pass two stages. *Contribute*: send everybody its slice of my input, receive
/// everybody's contribution to mine. *Result*: reduce my slice, send the result to all, receive the
/// other slices. Each stage has two sets of buffers, so that the next window is on its way while
/// one is reduced. Both ends of a link must post in one order, whatever arrives first where; it is
///     C0 C1 R0 C2 R1 C3 R2 …
/// which results from three rules: R(k) is posted after C(k+1); C(k+2) needs the buffers that R(k)
/// frees; both stages take the windows in order.
class DirectAllreduce final : public Operation {
 public:
  DirectAllreduce(Backend& backend, Staging& staging, std::span<const Piece> pieces,
                  const Reduction& reduction, const DirectPlan& plan)
      : members_(backend.members()),
        association_(backend.association()),
        reduction_(reduction),
        everyone_(plan.everyone),
        array_(pieces, reduction.dtype),
        element_(size_of(reduction.dtype)),
        window_(std::max<std::size_t>(1, std::min(plan.window, array_.count()))),
        windows_(ceil_div(array_.count(), window_)),
        slice_(everyone_ ? window_ : ceil_div(window_, size())),
        lease_(staging.lease(lay_out(nullptr))),
        sources_(size()),
        transfers_(backend) {
    (void)lay_out(lease_.data());
  }

  Result<Step> step() override {
    return transfers_.drive([this] { return advance(); },
                            [this] {
                              return finished_ == windows_ &&
                                     contribute_[0].sending + contribute_[1].sending == 0;
                            });
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  struct Contribute {
    int sending = 0;
    int receiving = 0;
    std::byte* packed = nullptr;     // my input, slice after slice; only where it must be packed
    std::byte* received = nullptr;   // what member m contributes to my slice, m after m
    const std::byte* own = nullptr;  // my contribution to my slice
  };
  struct Outcome {
    int sending = 0;
    int receiving = 0;
    std::byte* staged = nullptr;  // results by slice; only of slices that span pieces
  };
  struct Range {
    std::size_t begin, count;  // elements of the array
  };

  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(members_.size());
  }
  [[nodiscard]] std::size_t self() const noexcept {
    return static_cast<std::size_t>(members_.self);
  }

  /// Distributes `block` (null: only adds up). Returns the bytes needed.
  std::size_t lay_out(std::byte* block) {
    // Aligned for the kernels, and so that no two buffers share a cache line.
    const std::size_t slice_bytes = (slice_ * element_ + 63) / 64 * 64;
    const std::size_t live = std::min<std::size_t>(2, windows_);
    slice_stride_ = slice_bytes;
    std::size_t used = 0;
    const auto take = [&](std::size_t slices) {
      std::byte* taken = block == nullptr ? nullptr : block + used;
      used += slices * slice_bytes;
      return taken;
    };
    for (std::size_t i = 0; i < live; ++i) {
      contribute_[i].packed = take(everyone_ ? 1 : size());
      contribute_[i].received = take(size());
      outcome_[i].staged = take(everyone_ ? 1 : size());
    }
    return used;
  }

  [[nodiscard]] Range slice(std::size_t window, std::size_t member) const {
    const std::size_t begin = window * window_;
    const std::size_t count = std::min(window_, array_.count() - begin);
    if (everyone_) return {begin, count};
    const std::size_t first = std::min(member * slice_, count);
    return {begin + first, std::min(slice_, count - first)};
  }

  /// Does everything that needs no transfer. True if anything was done.
  bool advance() {
    bool advanced = false;
    while (finish() || reduce() || contribute()) advanced = true;
    return advanced;
  }

  bool contribute() {
    if (contributed_ == windows_ || contributed_ == reduced_ + 2) return false;
    Contribute& stage = contribute_[contributed_ % 2];
    if (stage.sending != 0) return false;  // the packed bytes of two windows ago
    const Range mine = slice(contributed_, self());
    for (std::size_t i = 0; i < size(); ++i) {
      const std::size_t member = (self() + i) % size();  // so that not all begin with member 0
      const Range range = slice(contributed_, member);
      if (range.count == 0) continue;
      if (i == 0 || !everyone_) source(stage, range, member);
      if (i == 0) {
        stage.own = source_;
        continue;
      }
      transfers_.send(static_cast<int>(member), {source_, range.count * element_}, stage.sending);
    }
    for (std::size_t member = 0; member < size(); ++member) {
      if (member == self()) continue;
      transfers_.recv(static_cast<int>(member),
                      {stage.received + member * slice_stride_, mine.count * element_},
                      stage.receiving);
    }
    ++contributed_;
    return true;
  }

  /// Points source_ at my scaled input of that range: the user's memory, if it is fit to be sent.
  void source(Contribute& stage, const Range& range, std::size_t member) {
    const bool plain = reduction_.prescale == 1.0 || reduction_.dtype == DType::Bool;
    source_ = plain ? array_.contiguous_in(range.begin, range.count) : nullptr;
    if (source_ != nullptr) return;
    std::byte* packed = stage.packed + (everyone_ ? 0 : member * slice_stride_);
    array_.pack(packed, range.begin, range.count, reduction_.prescale);
    source_ = packed;
  }

  bool reduce() {
    if (reduced_ == contributed_) return false;
    if (contributed_ != windows_ && contributed_ == reduced_ + 1) return false;  // C(k+1) first
    if (reduced_ == finished_ + 2) return false;                                 // no free buffer
    Contribute& stage = contribute_[reduced_ % 2];
    if (stage.receiving != 0) return false;
    // In place, the result would overwrite input that is still being sent. (Slices of others are
    // safe: their result arrives only after they have received all of my contribution.)
    if (everyone_ && stage.sending != 0) return false;

    Outcome& outcome = outcome_[reduced_ % 2];
    const Range mine = slice(reduced_, self());
    const std::byte* result = nullptr;
    if (mine.count != 0) {
      for (std::size_t member = 0; member < size(); ++member) {
        sources_[member] = member == self() ? stage.own : stage.received + member * slice_stride_;
      }
      std::byte* out = array_.contiguous_out(mine.begin, mine.count);
      const bool direct = out != nullptr;
      if (!direct) out = staged(outcome, self());
      association_.evaluate(out, sources_, mine.count, reduction_.dtype, reduction_.op,
                            reduction_.postscale);
      if (!direct) array_.unpack(out, mine.begin, mine.count);
      result = out;
    }
    if (!everyone_) {
      for (std::size_t i = 1; i < size(); ++i) {
        const std::size_t member = (self() + i) % size();
        transfers_.send(static_cast<int>(member), {result, mine.count * element_}, outcome.sending);
        const Range range = slice(reduced_, member);
        if (range.count == 0) continue;
        std::byte* out = array_.contiguous_out(range.begin, range.count);
        if (out == nullptr) out = staged(outcome, member);
        transfers_.recv(static_cast<int>(member), {out, range.count * element_}, outcome.receiving);
      }
    }
    ++reduced_;
    return true;
  }

  bool finish() {
    if (finished_ == reduced_) return false;
    Outcome& outcome = outcome_[finished_ % 2];
    if (outcome.sending != 0 || outcome.receiving != 0) return false;
    for (std::size_t member = 0; !everyone_ && member < size(); ++member) {
      const Range range = slice(finished_, member);
      if (member == self() || range.count == 0) continue;
      if (array_.contiguous_out(range.begin, range.count) == nullptr) {
        array_.unpack(staged(outcome, member), range.begin, range.count);
      }
    }
    ++finished_;
    return true;
  }

  [[nodiscard]] std::byte* staged(const Outcome& outcome, std::size_t member) const {
    return outcome.staged + (everyone_ ? 0 : member * slice_stride_);
  }

  const Members& members_;
  const Association& association_;
  const Reduction reduction_;
  const bool everyone_;
  const PieceArray array_;
  const std::size_t element_;  // bytes
  const std::size_t window_;   // elements
  const std::size_t windows_;
  const std::size_t slice_;               // elements
  std::size_t slice_stride_ = 0;          // bytes
  std::array<Contribute, 2> contribute_;  // by window modulo 2
  std::array<Outcome, 2> outcome_;
  Staging::Lease lease_;
  std::vector<const std::byte*> sources_;
  const std::byte* source_ = nullptr;
  std::size_t contributed_ = 0;  // windows that have passed each stage
  std::size_t reduced_ = 0;
  std::size_t finished_ = 0;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::size_t direct_slice(std::size_t element_bytes, int members) {
  const auto size = static_cast<std::size_t>(members);
  const std::size_t window = std::clamp(size * kSliceBytes, kWindowBytes, kMaxWindowBytes);
  return window / size / element_bytes;
}

DirectPlan plan_direct(std::size_t count, std::size_t element_bytes, int members) {
  const auto size = static_cast<std::size_t>(members);
  const std::size_t bytes = count * element_bytes;
  // Memory: two windows under way need three buffers each of about a window (sliced) or of one
  // window for every member and two more (everyone).
  if (members <= 2) return {kWindowBytes / element_bytes, true};
  if (bytes <= std::min(kSmallBytes, kSmallStagingBytes / size)) return {count, true};
  return {size * direct_slice(element_bytes, members), false};
}

std::unique_ptr<Operation> direct_allreduce(Backend& backend, Staging& staging,
                                            std::span<const Piece> pieces,
                                            const Reduction& reduction, const DirectPlan& plan) {
  return std::make_unique<DirectAllreduce>(backend, staging, pieces, reduction, plan);
}

}  // namespace farandole

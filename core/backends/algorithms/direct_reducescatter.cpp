#include "backends/algorithms/direct.h"

#include <algorithm>
#include <array>
#include <vector>

#include "backends/algorithms/transfers.h"
#include "backends/buffers/piece_array.h"
#include "rounding.h"

namespace farandole {
namespace {

/// Window k is elements [k * window, (k + 1) * window) of every member's part; short parts have
/// ended by then. *Contribute*: send every owner my input to its part, receive everybody's to mine.
/// *Reduce*: my part, straight into the output. There are two sets of buffers, so that the next
/// window is on its way while one is reduced. Transfers with a peer are posted window by window at
/// both ends.
class DirectReducescatter final : public Operation {
 public:
  DirectReducescatter(Backend& backend, Staging& staging, std::span<const ScatterPiece> pieces,
                      const Reduction& reduction, std::size_t window)
      : members_(backend.members()),
        association_(backend.association()),
        reduction_(reduction),
        plain_(reduction.prescale == 1.0 || reduction.dtype == DType::Bool),
        element_(size_of(reduction.dtype)),
        parts_(parts_by_owner(pieces, reduction.dtype, members_.size(), members_.self)),
        window_(std::max<std::size_t>(1, std::min(window, longest(parts_)))),
        windows_(ceil_div(longest(parts_), window_)),
        stride_((window_ * element_ + 63) / 64 * 64),
        lease_(staging.lease(std::min<std::size_t>(2, windows_) * 2 * size() * stride_)),
        sources_(size()),
        fragments_(size()),
        transfers_(backend) {
    for (std::size_t i = 0; i < std::min<std::size_t>(2, windows_); ++i) {
      stages_[i].packed = lease_.data() + 2 * i * size() * stride_;
      stages_[i].received = stages_[i].packed + size() * stride_;
    }
  }

  Result<Step> step() override {
    return transfers_.drive(
        [this] { return advance(); },
        [this] { return reduced_ == windows_ && stages_[0].sending + stages_[1].sending == 0; });
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  struct Stage {
    int sending = 0;
    int receiving = 0;
    std::byte* packed = nullptr;     // my input to member m's part, m after m; where it is needed
    std::byte* received = nullptr;   // what member m contributes to my part, m after m
    const std::byte* own = nullptr;  // my contribution to my part
  };

  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(members_.size());
  }
  [[nodiscard]] std::size_t self() const noexcept {
    return static_cast<std::size_t>(members_.self);
  }
  /// Elements of that member's part in a window.
  [[nodiscard]] std::size_t count(std::size_t window, std::size_t member) const {
    const std::size_t whole = parts_[member].count();
    return std::min(window_, whole - std::min(whole, window * window_));
  }

  bool advance() {
    bool advanced = false;
    while (reduce() || contribute()) advanced = true;
    return advanced;
  }

  bool contribute() {
    if (contributed_ == windows_ || contributed_ == reduced_ + 2) return false;
    Stage& stage = stages_[contributed_ % 2];
    if (stage.sending != 0) return false;  // the packed bytes of two windows ago
    for (std::size_t i = 0; i < size(); ++i) {
      const std::size_t member = (self() + i) % size();  // so that not all begin with member 0
      const std::size_t elements = count(contributed_, member);
      if (elements == 0) continue;
      const std::byte* const data = source(stage, member, elements);
      if (i == 0) {
        stage.own = data;
      } else {
        transfers_.send(static_cast<int>(member), {data, elements * element_}, stage.sending);
      }
    }
    const std::size_t mine = count(contributed_, self());
    for (std::size_t member = 0; member < size(); ++member) {
      if (member == self()) continue;
      transfers_.recv(static_cast<int>(member),
                      {stage.received + member * stride_, mine * element_}, stage.receiving);
    }
    ++contributed_;
    return true;
  }

  /// My scaled input to that part: the user's memory, if it is fit to be sent.
  const std::byte* source(Stage& stage, std::size_t member, std::size_t elements) {
    const PieceArray& part = parts_[member];
    const std::size_t begin = contributed_ * window_;
    if (plain_) {
      const std::byte* const in = part.contiguous_in(begin, elements);
      if (in != nullptr) return in;
    }
    std::byte* const packed = stage.packed + member * stride_;
    part.pack(packed, begin, elements, reduction_.prescale);
    return packed;
  }

  bool reduce() {
    if (reduced_ == contributed_) return false;
    if (contributed_ != windows_ && contributed_ == reduced_ + 1) return false;  // keep links busy
    Stage& stage = stages_[reduced_ % 2];
    if (stage.receiving != 0) return false;
    const std::size_t mine = count(reduced_, self());
    if (mine != 0) {
      for (std::size_t member = 0; member < size(); ++member) {
        sources_[member] = member == self() ? stage.own : stage.received + member * stride_;
      }
      parts_[self()].for_each(
          reduced_ * window_, mine,
          [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t before) {
            for (std::size_t member = 0; member < size(); ++member) {
              fragments_[member] = sources_[member] + before * element_;
            }
            association_.evaluate(piece.out + first * element_, fragments_, elements,
                                  reduction_.dtype, reduction_.op, reduction_.postscale);
          });
    }
    ++reduced_;
    return true;
  }

  const Members& members_;
  const Association& association_;
  const Reduction reduction_;
  const bool plain_;
  const std::size_t element_;            // bytes
  const std::vector<PieceArray> parts_;  // by owner
  const std::size_t window_;             // elements
  const std::size_t windows_;
  const std::size_t stride_;     // bytes
  std::array<Stage, 2> stages_;  // by window modulo 2
  Staging::Lease lease_;
  std::vector<const std::byte*> sources_;    // by member, of a window
  std::vector<const std::byte*> fragments_;  // the same, of what lies in one piece
  std::size_t contributed_ = 0;              // windows
  std::size_t reduced_ = 0;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> direct_reducescatter(Backend& backend, Staging& staging,
                                                std::span<const ScatterPiece> pieces,
                                                const Reduction& reduction, std::size_t window) {
  return std::make_unique<DirectReducescatter>(backend, staging, pieces, reduction, window);
}

}  // namespace farandole

#include "backends/hierarchical/collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "backends/hierarchical/hosts.h"
#include "rounding.h"

namespace farandole {
namespace {

constexpr std::size_t kLine = 64;

class HierarchicalAllreduce : public HostRounds {
 protected:
  HierarchicalAllreduce(const HostBackends& through, std::span<const Piece> pieces,
                        const HostReduction& reduction, std::size_t rounds)
      : HostRounds(rounds),
        through_(through),
        array_(pieces, reduction.inside.dtype),
        reduction_(reduction),
        element_(size_of(reduction.inside.dtype)) {}

  /// A member alone on its host: its input is the host's value, but for the host's share of the
  /// factor. Null if there is nothing to do: then the carrier reads the input where it is.
  std::unique_ptr<Operation> host_of_one(std::size_t begin, std::size_t count) {
    if (reads_inputs() || count == 0) return nullptr;
    return scale_pieces(pieces_of(begin, count, true), reduction_.inside);
  }

  /// The tree of hosts for elements of the array, whose host's value is in the outputs.
  std::unique_ptr<Operation> tree(std::size_t begin, std::size_t count) {
    if (through_.carriers == nullptr || count == 0) return nullptr;
    Reduction between = reduction_.between;
    if (reads_inputs()) between.prescale = reduction_.inside.prescale;
    return through_.carriers->start(Allreduce{pieces_of(begin, count, reads_inputs()), between});
  }

  /// The outputs of elements of the array.
  template <typename Byte>
  std::vector<std::span<Byte>> outputs(std::size_t begin, std::size_t count) const {
    std::vector<std::span<Byte>> spans;
    if (count == 0) return spans;
    array_.for_each(begin, count,
                    [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t) {
                      spans.push_back({piece.out + first * element_, elements * element_});
                    });
    return spans;
  }

  [[nodiscard]] bool reads_inputs() const noexcept {
    return through_.local == nullptr && reduction_.inside.postscale == 1.0;
  }

  /// Elements of the array, from inputs or from outputs to outputs.
  [[nodiscard]] std::vector<Piece> pieces_of(std::size_t begin, std::size_t count,
                                             bool from_inputs) const {
    std::vector<Piece> pieces;
    array_.for_each(
        begin, count,
        [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t) {
          std::byte* const out = piece.out + first * element_;
          pieces.push_back({from_inputs ? piece.in + first * element_ : out, out, elements});
        });
    return pieces;
  }

  const HostBackends through_;
  const HostPlan& plan_ = through_.plan;
  const PieceArray array_;
  const HostReduction reduction_;
  const std::size_t element_;  // bytes
};

class SmallAllreduce final : public HierarchicalAllreduce {
 public:
  SmallAllreduce(const HostBackends& through, std::span<const Piece> pieces,
                 const HostReduction& reduction, bool any)
      : HierarchicalAllreduce(through, pieces, reduction, any ? 1 : 0) {}

 private:
  std::unique_ptr<Operation> before(std::size_t) override {
    if (through_.local == nullptr) return host_of_one(0, array_.count());
    return through_.local->start(Allreduce{array_.pieces(), reduction_.inside});
  }
  std::unique_ptr<Operation> across(std::size_t) override { return tree(0, array_.count()); }
  std::unique_ptr<Operation> after(std::size_t) override {
    if (through_.local == nullptr || plan_.all_carry()) return nullptr;
    GatherPlan gather;
    gather.out.resize(static_cast<std::size_t>(plan_.here));
    gather.out.front() = outputs<std::byte>(0, array_.count());
    if (plan_.index == 0) gather.in = outputs<const std::byte>(0, array_.count());
    return through_.local->start(std::move(gather));
  }
};

/// What a member has reduced goes straight into its output, which is where the network reads it,
/// and writes it, and from where the others get it: no memory beside what users gave.
class LargeAllreduce final : public HierarchicalAllreduce {
 public:
  LargeAllreduce(const HostBackends& through, std::span<const Piece> pieces,
                 const HostReduction& reduction, std::size_t count, std::size_t per_round)
      : HierarchicalAllreduce(through, pieces, reduction, ceil_div(count, per_round)),
        per_round_(per_round) {}

 private:
  struct Slice {
    std::size_t begin, count;  // elements of the array
  };

  [[nodiscard]] Slice round_of(std::size_t round) const {
    const std::size_t begin = round * per_round_;
    return {begin, std::min(per_round_, array_.count() - begin)};
  }
  /// What a member of a host carries of a round; nothing if it is no carrier.
  [[nodiscard]] Slice slice(std::size_t round, int member) const {
    const Slice whole = round_of(round);
    const auto carriers = static_cast<std::size_t>(plan_.carriers);
    const std::size_t lines = ceil_div(ceil_div(whole.count, carriers) * element_, kLine);
    const std::size_t each = lines * kLine / element_;
    const std::size_t first = member < plan_.carriers
                                  ? std::min(whole.count, static_cast<std::size_t>(member) * each)
                                  : whole.count;
    return {whole.begin + first, std::min(each, whole.count - first)};
  }

  std::unique_ptr<Operation> before(std::size_t round) override {
    const Slice whole = round_of(round);
    if (through_.local == nullptr) return host_of_one(whole.begin, whole.count);
    std::vector<ScatterPiece> parts;
    array_.for_each(
        whole.begin, whole.count,
        [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t before) {
          ScatterPiece part;
          for (int member = 0; member <= plan_.here; ++member) {
            const std::size_t begin = slice(round, member).begin - whole.begin;
            part.begins.push_back(std::clamp(begin, before, before + elements) - before);
          }
          const std::size_t own = part.begins[static_cast<std::size_t>(plan_.index)];
          part.in = piece.in + first * element_;
          part.out = piece.out + (first + own) * element_;
          parts.push_back(std::move(part));
        });
    return through_.local->start(Reducescatter{parts, reduction_.inside});
  }

  std::unique_ptr<Operation> across(std::size_t round) override {
    const Slice mine = slice(round, plan_.index);
    return tree(mine.begin, mine.count);
  }

  std::unique_ptr<Operation> after(std::size_t round) override {
    if (through_.local == nullptr) return nullptr;
    GatherPlan gather;
    for (int member = 0; member < plan_.here; ++member) {
      const Slice theirs = slice(round, member);
      gather.out.push_back(outputs<std::byte>(theirs.begin, theirs.count));
    }
    const Slice mine = slice(round, plan_.index);
    gather.in = outputs<const std::byte>(mine.begin, mine.count);
    return through_.local->start(std::move(gather));
  }

  const std::size_t per_round_;  // elements
};

}  // namespace

std::unique_ptr<Operation> hierarchical_allreduce(const HostBackends& through,
                                                  std::span<const Piece> pieces,
                                                  const HostReduction& reduction) {
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  if (through.small()) {
    return std::make_unique<SmallAllreduce>(through, pieces, reduction, count > 0);
  }
  const auto carriers = static_cast<std::size_t>(through.plan.carriers);
  const std::size_t per_round = carriers * (through.share_bytes / size_of(reduction.inside.dtype));
  return std::make_unique<LargeAllreduce>(through, pieces, reduction, count, per_round);
}

}  // namespace farandole

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "backends/hierarchical/collectives.h"
#include "backends/hierarchical/hosts.h"
#include "rounding.h"

namespace farandole {
namespace {

/// A host's block is what its members get, one after another. A round is as much of every host's
/// block, and a carrier takes a slice of that:
///
///   before  the host's value of the own slices of all blocks
///   across  the tree of hosts; what remains is the own slice of the own host's block
///   after   its elements go to the members that get them
class HierarchicalReducescatter final : public HostRounds {
 public:
  HierarchicalReducescatter(const HostBackends& through, std::vector<PieceArray> blocks,
                            std::vector<PieceArray> here, Staging& staging,
                            const HostReduction& reduction, std::size_t slice, std::size_t longest)
      : HostRounds(ceil_div(longest, slice * static_cast<std::size_t>(through.plan.carriers))),
        through_(through),
        blocks_(std::move(blocks)),
        here_(std::move(here)),
        reduction_(reduction),
        element_(size_of(reduction.inside.dtype)),
        slice_(slice),
        lease_(staging.lease(kRounds * round_bytes())) {
    for (std::size_t i = 0; i < kRounds; ++i) {
      std::byte* const memory = lease_.data() + i * round_bytes();
      rooms_[i].values = memory;
      rooms_[i].reduced = rooms_[i].values + blocks_.size() * slice_ * element_;
      rooms_[i].mine = rooms_[i].reduced + slice_ * element_;
    }
  }

 private:
  static constexpr std::size_t kRounds = 2;  ///< under way

  struct Room {
    std::byte* values = nullptr;   // the host's value of the own slices, host after host
    std::byte* reduced = nullptr;  // the own slice of the own block
    std::byte* mine = nullptr;     // what this member gets
  };
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
    [[nodiscard]] std::size_t count() const noexcept { return end - begin; }
  };
  static Range common(Range a, Range b) noexcept {
    const std::size_t begin = std::max(a.begin, b.begin);
    return {begin, std::max(begin, std::min(a.end, b.end))};
  }

  [[nodiscard]] std::size_t carriers() const noexcept {
    return static_cast<std::size_t>(through_.plan.carriers);
  }
  [[nodiscard]] std::size_t round_bytes() const noexcept {
    return (blocks_.size() + 1 + carriers()) * slice_ * element_;
  }
  [[nodiscard]] Room& room(std::size_t round) noexcept { return rooms_[round % kRounds]; }
  [[nodiscard]] const PieceArray& own_block() const noexcept {
    return blocks_[static_cast<std::size_t>(through_.plan.host)];
  }
  /// Elements of a block that a carrier takes in a round; none for who is no carrier.
  [[nodiscard]] Range slice(const PieceArray& block, std::size_t round, int carrier) const {
    const auto index = static_cast<std::size_t>(carrier);
    if (index >= carriers()) return {};
    const std::size_t begin = (round * carriers() + index) * slice_;
    return {std::min(begin, block.count()), std::min(begin + slice_, block.count())};
  }
  /// Where the elements lie in the own block that a member of this host gets.
  [[nodiscard]] Range part(int member) const {
    Range range;
    for (int before = 0; before <= member; ++before) {
      range.begin = range.end;
      range.end += here_[static_cast<std::size_t>(before)].count();
    }
    return range;
  }
  [[nodiscard]] std::span<std::byte> bytes(std::byte* from, std::size_t elements) const noexcept {
    return {from, elements * element_};
  }

  std::unique_ptr<Operation> before(std::size_t round) override {
    std::vector<ScatterPiece> pieces;
    const Reduction& inside = reduction_.inside;
    std::byte* value = room(round).values;
    for (const PieceArray& block : blocks_) {
      if (through_.local == nullptr) {
        const Range mine = slice(block, round, through_.plan.index);
        if (mine.count() == 0) continue;
        block.pack(value, mine.begin, mine.count(), inside.prescale);
        if (inside.postscale != 1.0) {
          scale_copy(value, value, mine.count(), inside.dtype, inside.postscale);
        }
        value += mine.count() * element_;
        continue;
      }
      for (int carrier = 0; carrier < through_.plan.carriers; ++carrier) {
        const Range range = slice(block, round, carrier);
        if (range.count() == 0) continue;
        block.for_each(range.begin, range.count(),
                       [&](const Piece& piece, std::size_t first, std::size_t count, std::size_t) {
                         ScatterPiece to_carrier;
                         to_carrier.in = piece.in + first * element_;
                         to_carrier.out = value;
                         for (int member = 0; member <= through_.plan.here; ++member) {
                           to_carrier.begins.push_back(member <= carrier ? 0 : count);
                         }
                         pieces.push_back(std::move(to_carrier));
                         if (carrier == through_.plan.index) value += count * element_;
                       });
      }
    }
    if (through_.local == nullptr) return nullptr;
    return through_.local->start(Reducescatter{pieces, inside});
  }

  std::unique_ptr<Operation> across(std::size_t round) override {
    if (through_.carriers == nullptr) return nullptr;
    ScatterPiece slices{.in = room(round).values, .out = room(round).reduced, .begins = {0}};
    for (const PieceArray& block : blocks_) {
      slices.begins.push_back(slices.begins.back() +
                              slice(block, round, through_.plan.index).count());
    }
    if (slices.begins.back() == 0) return nullptr;
    return through_.carriers->start(Reducescatter{std::array{slices}, reduction_.between});
  }

  std::unique_ptr<Operation> after(std::size_t round) override {
    if (through_.local == nullptr) return nullptr;
    AlltoallPlan plan;
    const int self = through_.plan.index;
    const Range brought = slice(own_block(), round, self);
    std::byte* mine = room(round).mine;
    for (int member = 0; member < through_.plan.here; ++member) {
      const Range given = common(brought, part(member));
      plan.in.push_back(bytes(
          room(round).reduced + (given.count() == 0 ? 0 : given.begin - brought.begin) * element_,
          given.count()));
      const Range theirs = slice(own_block(), round, member);
      plan.out.push_back(bytes(mine, common(theirs, part(self)).count()));
      mine += plan.out.back().size();
      plan.longest = std::max(plan.longest, theirs.count() * element_);
    }
    return through_.local->start(std::move(plan));
  }

  void finish(std::size_t round) override {
    const PieceArray& out = here_[static_cast<std::size_t>(through_.plan.index)];
    const std::size_t per_round = carriers() * slice_;
    const Range own = part(through_.plan.index);
    const Range got = common(own, {round * per_round, (round + 1) * per_round});
    if (got.count() == 0) return;
    const Room& from = room(round);
    out.unpack(through_.local == nullptr ? from.reduced : from.mine, got.begin - own.begin,
               got.count());
  }

  const HostBackends through_;
  const std::vector<PieceArray> blocks_;  // by host: what its members get; inputs
  const std::vector<PieceArray> here_;    // by member of the own host; outputs of the own one
  const HostReduction reduction_;
  const std::size_t element_;  // bytes
  const std::size_t slice_;    // elements of a block, a round and a carrier
  Staging::Lease lease_;
  std::array<Room, kRounds> rooms_;  // by round modulo their number
};

}  // namespace

std::unique_ptr<Operation> hierarchical_reducescatter(const HostBackends& through,
                                                      const Members& members, Staging& staging,
                                                      std::span<const ScatterPiece> pieces,
                                                      const HostReduction& reduction) {
  auto parts = parts_by_owner(pieces, reduction.inside.dtype, members.size(), members.self);
  std::vector<PieceArray> blocks;
  std::vector<PieceArray> here;
  std::size_t longest = 0;
  for (const auto& group : members.groups) {
    std::vector<Piece> block;
    const bool own = blocks.size() == static_cast<std::size_t>(through.plan.host);
    for (const int member : group) {
      PieceArray& part = parts[static_cast<std::size_t>(member)];
      block.insert(block.end(), part.pieces().begin(), part.pieces().end());
      if (own) here.push_back(std::move(part));
    }
    blocks.emplace_back(block, reduction.inside.dtype);
    longest = std::max(longest, blocks.back().count());
  }
  const auto carriers = static_cast<std::size_t>(through.plan.carriers);
  const std::size_t most = std::max<std::size_t>(
      through.share_bytes / size_of(reduction.inside.dtype) / blocks.size(), 1);
  const std::size_t slice = std::max<std::size_t>(std::min(most, ceil_div(longest, carriers)), 1);
  return std::make_unique<HierarchicalReducescatter>(through, std::move(blocks), std::move(here),
                                                     staging, reduction, slice, longest);
}

}  // namespace farandole

#include "kernels/association.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <utility>

namespace farandole {
namespace {

/// Partial results stay in the first-level cache: a tree of h hosts has about log2(h) of them at a
/// time.
constexpr std::size_t kBlockBytes = 4096;
/// Enough for 2^14 hosts.
constexpr std::size_t kDepth = 16;

/// Evaluates one block of the tree of at least two hosts, depth first.
class Block {
 public:
  Block(const std::vector<std::vector<int>>& groups, std::span<const std::byte* const> sources,
        DType dtype, ReduceOp op, const Shares& shares, Level level)
      : groups_(groups),
        sources_(sources),
        dtype_(dtype),
        op_(op),
        shares_(shares),
        level_(level),
        power_(std::bit_floor(groups.size())) {
    members_.reserve(sources.size());
  }

  /// Bytes from `begin` on, `count` elements.
  void evaluate(std::size_t begin, std::size_t count, std::byte* out, std::byte* also_out) {
    begin_ = begin;
    count_ = count;
    const std::size_t half = power_ / 2;
    // The last step writes to the destinations. All sources have been read by then.
    const std::byte* left = subtree(0, half, 0);
    const std::byte* right = subtree(half, half, 1);
    const std::array pair{left, right};
    reduce(out, pair, count_, dtype_, op_, shares_.last, also_out, level_);
  }

 private:
  [[nodiscard]] bool surplus() const noexcept { return groups_.size() > power_; }

  /// Value of the `width` hosts from `first` on (and of the surplus hosts below them), in
  /// scratch_[slot] or where it already is. Uses scratch from `slot` on.
  const std::byte* subtree(std::size_t first, std::size_t width, std::size_t slot) {
    if (width > 1) {
      const std::byte* left = subtree(first, width / 2, slot);
      const std::byte* right = subtree(first + width / 2, width / 2, slot + 1);
      const int round = std::bit_width(width) - 2 + (surplus() ? 1 : 0);
      return combine(left, right, slot, shares_.round(round));
    }
    const std::byte* own = host(first, slot);
    if (first + power_ < groups_.size()) {
      return combine(own, host(first + power_, slot + 1), slot, shares_.round(0));
    }
    return surplus() ? scaled(own, slot, shares_.round(0)) : own;
  }

  const std::byte* combine(const std::byte* left, const std::byte* right, std::size_t slot,
                           double share) {
    const std::array pair{left, right};
    reduce(scratch_[slot].data(), pair, count_, dtype_, op_, share, nullptr, level_);
    return scratch_[slot].data();
  }

  const std::byte* scaled(const std::byte* value, std::size_t slot, double share) {
    if (share == 1.0) return value;
    scale_copy(scratch_[slot].data(), value, count_, dtype_, share, level_);
    return scratch_[slot].data();
  }

  const std::byte* host(std::size_t index, std::size_t slot) {
    const std::span<const std::byte* const> members = members_of(index);
    if (members.size() == 1) return scaled(members[0], slot, shares_.host);
    reduce(scratch_[slot].data(), members, count_, dtype_, op_, shares_.host, nullptr, level_);
    return scratch_[slot].data();
  }

  std::span<const std::byte* const> members_of(std::size_t index) {
    members_.clear();
    for (const int member : groups_[index]) {
      members_.push_back(sources_[static_cast<std::size_t>(member)] + begin_);
    }
    return members_;
  }

  const std::vector<std::vector<int>>& groups_;
  std::span<const std::byte* const> sources_;
  DType dtype_;
  ReduceOp op_;
  Shares shares_;
  Level level_;
  std::size_t power_;
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  std::vector<const std::byte*> members_;
  alignas(64) std::array<std::array<std::byte, kBlockBytes>, kDepth> scratch_;
};

}  // namespace

Association::Association(std::vector<std::vector<int>> groups) : groups_(std::move(groups)) {
  for (const auto& group : groups_) {
    assert(!group.empty() && std::ranges::is_sorted(group));
    size_ += static_cast<int>(group.size());
    doublings_ = std::max(doublings_, static_cast<int>(std::bit_width(group.size() - 1)));
  }
  assert(std::ranges::is_sorted(groups_, {}, [](const auto& group) { return group.front(); }));
  const int hosts = static_cast<int>(groups_.size());
  if (hosts == 0) return;
  const int power = static_cast<int>(std::bit_floor(groups_.size()));
  assert(std::bit_width(groups_.size()) + 1 < kDepth);
  rounds_ = static_cast<int>(std::bit_width(groups_.size() - 1));
  for (int host = power; host < hosts; ++host) steps_.push_back({host - power, host});
  for (int distance = 1; distance < power; distance *= 2) {
    for (int host = 0; host < power; host += 2 * distance)
      steps_.push_back({host, host + distance});
  }
}

Shares Association::shares(DType dtype, ReduceOp op, double postscale) const noexcept {
  const bool half = dtype == DType::Float16 || dtype == DType::BFloat16;
  const bool shrinks = postscale != 0.0 && std::abs(postscale) < 1.0;
  if (hosts() < 2 || !half || op != ReduceOp::Sum || !shrinks) return {.last = postscale};
  const int available = -std::ilogb(postscale);  // after so many halvings the rest is 1 … 2
  const int inside = std::min(available, doublings_);
  const int between = std::min(available - inside, rounds_ - 1);
  return {.host = std::ldexp(1.0, -inside),
          .halving = between,
          .last = std::ldexp(postscale, inside + between)};
}

void Association::evaluate(std::byte* out, std::span<const std::byte* const> sources,
                           std::size_t count, DType dtype, ReduceOp op, double postscale,
                           std::byte* also_out, Level level) const {
  assert(sources.size() == static_cast<std::size_t>(size_) && size_ > 0);
  const bool two_alone = size_ == 2 && groups_.size() == 2;
  if (groups_.size() == 1 || two_alone) {  // member order is then the order of the tree
    reduce(out, sources, count, dtype, op, postscale, also_out, level);
    return;
  }
  Block block(groups_, sources, dtype, op, shares(dtype, op, postscale), level);
  const std::size_t width = size_of(dtype);
  const std::size_t step = kBlockBytes / width;
  for (std::size_t at = 0; at < count; at += step) {
    const std::size_t begin = at * width;
    block.evaluate(begin, std::min(step, count - at), out + begin,
                   also_out == nullptr ? nullptr : also_out + begin);
  }
}

}  // namespace farandole

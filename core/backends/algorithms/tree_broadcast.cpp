#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "backends/algorithms/direct_collectives.h"
#include "backends/algorithms/transfers.h"
#include "backends/failed_operation.h"
#include "rounding.h"

namespace farandole {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr std::size_t kUnderWay = 4;  // chunks

/// Members are numbered from the root on. In a tree, the parent of a number is the number without
/// its lowest one bit; the children of n are n + 1, n + 2, n + 4 … below that bit. In a chain, they
/// are the numbers before and after it.
class TreeBroadcast final : public Operation {
 public:
  TreeBroadcast(Backend& backend, std::span<const std::byte> in, std::span<std::byte> out, int root)
      : in_(in), out_(out), chunks_(ceil_div(out.size(), kChunk)), transfers_(backend) {
    const int size = backend.members().size();
    const int number = (backend.members().self - root + size) % size;
    const bool chain = chain_broadcast(out.size(), size);
    const int lowest = chain ? std::min(2, size) : number == 0 ? size : number & -number;
    if (number != 0) parent_ = (number - (chain ? 1 : lowest) + root) % size;
    for (int distance = 1; distance < lowest && number + distance < size; distance *= 2) {
      children_.push_back((number + distance + root) % size);
    }
    // The child with the most members below it comes first.
    std::reverse(children_.begin(), children_.end());
    if (number == 0) received_ = chunks_;
  }

  Result<Step> step() override {
    if (parent_ < 0 && !out_.empty() && out_.data() != in_.data()) {
      std::memcpy(out_.data(), in_.data(), out_.size());
      in_ = out_;
    }
    bool moved = advance();
    auto exchanged = transfers_.step();
    if (!exchanged) return std::move(exchanged).error();
    moved = moved || *exchanged;
    if (*exchanged && advance()) moved = true;
    if (sent_ == chunks_) return Step::Done;
    return moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  [[nodiscard]] std::span<std::byte> chunk(std::size_t index) const {
    return out_.subspan(index * kChunk, std::min(kChunk, out_.size() - index * kChunk));
  }

  bool advance() {
    bool advanced = false;
    while (received_ < posted_ && receiving_[received_ % kUnderWay] == 0) {
      ++received_;
      advanced = true;
    }
    while (parent_ >= 0 && posted_ < chunks_ && posted_ < received_ + kUnderWay) {
      transfers_.recv(parent_, chunk(posted_), receiving_[posted_ % kUnderWay]);
      ++posted_;
      advanced = true;
    }
    while (sent_ < forwarded_ && sending_[sent_ % kUnderWay] == 0) {
      ++sent_;
      advanced = true;
    }
    while (forwarded_ < received_ && forwarded_ < sent_ + kUnderWay) {
      for (const int child : children_) {
        transfers_.send(child, chunk(forwarded_), sending_[forwarded_ % kUnderWay]);
      }
      ++forwarded_;
      advanced = true;
    }
    while (sent_ < forwarded_ && sending_[sent_ % kUnderWay] == 0) ++sent_;  // nobody below
    return advanced;
  }

  std::span<const std::byte> in_;
  const std::span<std::byte> out_;
  const std::size_t chunks_;
  int parent_ = -1;  // set ranks
  std::vector<int> children_;
  std::array<int, kUnderWay> receiving_{};  // by chunk modulo kUnderWay
  std::array<int, kUnderWay> sending_{};
  std::size_t posted_ = 0;  // chunks asked of the parent, received, passed on, passed on completely
  std::size_t received_ = 0;
  std::size_t forwarded_ = 0;
  std::size_t sent_ = 0;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

bool chain_broadcast(std::size_t bytes, int members) noexcept {
  if (members < 3) return false;
  // In the tree the root sends everything to `children` members one after another; in the chain
  // only once, but the last member gets its first chunk later.
  const auto children =
      static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(members - 1)));
  return bytes * (children - 1) > 2 * kChunk * static_cast<std::size_t>(members - 2);
}

std::unique_ptr<Operation> tree_broadcast(Backend& backend, std::span<const std::byte> in,
                                          std::span<std::byte> out, int root) {
  const Members& members = backend.members();
  if (root < 0 || root >= members.size() || (root == members.self && in.size() != out.size())) {
    return failed_operation(
        Code::InvalidArgument,
        "a broadcast needs a root in the set, with an output as long as its input");
  }
  return std::make_unique<TreeBroadcast>(backend, in, out, root);
}

}  // namespace farandole

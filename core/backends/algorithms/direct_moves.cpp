#include "backends/algorithms/direct.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/algorithms/transfers.h"
#include "backends/buffers/spans.h"
#include "backends/operation.h"
#include "rounding.h"

namespace farandole {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
constexpr std::size_t kMinChunk = std::size_t{4} << 10;
constexpr std::size_t kMaxChunk = std::size_t{512} << 10;

/// Contributions travel in chunks whose size depends on the number of members alone, because
/// members may divide the same bytes into different spans. Two chunks of each contribution are in
/// flight.
class DirectAllgather final : public Operation {
 public:
  DirectAllgather(Backend& backend, Staging& staging, GatherPlan plan)
      : self_(static_cast<std::size_t>(backend.members().self)),
        size_(plan.out.size()),
        in_(std::move(plan.in)),
        out_(lists(std::move(plan.out))),
        chunk_(std::min(std::clamp(kStagingBytes / (2 * (size_ + 1)), kMinChunk, kMaxChunk),
                        longest())),
        lease_(staging.lease(2 * (size_ + 1) * chunk_)),
        receipts_(size_),
        transfers_(backend) {}

  Result<Step> step() override {
    return transfers_.drive([this] { return advance(); }, [this] { return complete(); });
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  struct Receipt {
    std::size_t posted = 0;  // chunks of one member's contribution
    std::size_t stored = 0;
    std::array<int, 2> pending{};  // by chunk modulo 2
  };

  static std::vector<SpanList<std::byte>> lists(
      std::vector<std::vector<std::span<std::byte>>> out) {
    std::vector<SpanList<std::byte>> lists;
    lists.reserve(out.size());
    for (auto& spans : out) lists.emplace_back(std::move(spans));
    return lists;
  }
  [[nodiscard]] std::size_t longest() const {
    std::size_t bytes = 1;
    for (const auto& list : out_) bytes = std::max(bytes, list.bytes());
    return bytes;
  }
  [[nodiscard]] std::size_t chunks(std::size_t bytes) const { return ceil_div(bytes, chunk_); }
  [[nodiscard]] std::size_t chunk_bytes(std::size_t total, std::size_t index) const {
    return std::min(chunk_, total - index * chunk_);
  }
  /// Staging of chunk `index` from `member`; my own place holds what I send.
  [[nodiscard]] std::byte* staged(std::size_t member, std::size_t index) const {
    return lease_.data() + (2 * member + index % 2) * chunk_;
  }

  bool advance() {
    bool advanced = copy_own();
    while (send()) advanced = true;
    for (std::size_t member = 0; member < size_; ++member) {
      while (member != self_ && (store(member) || receive(member))) advanced = true;
    }
    return advanced;
  }

  bool copy_own() {
    if (own_copied_) return false;
    own_copied_ = true;
    in_.for_each(0, in_.bytes(), [this](std::span<const std::byte> from, std::size_t before) {
      out_[self_].for_each(before, from.size(), [&](std::span<std::byte> to, std::size_t begin) {
        std::memmove(to.data(), from.data() + begin, to.size());  // may be the same memory
      });
    });
    return true;
  }

  bool send() {
    if (sent_ == chunks(in_.bytes()) || sending_[sent_ % 2] != 0) return false;
    const std::size_t begin = sent_ * chunk_;
    const std::size_t bytes = chunk_bytes(in_.bytes(), sent_);
    const std::byte* data = in_.contiguous(begin, bytes);
    if (data == nullptr) {
      std::byte* packed = staged(self_, sent_);
      in_.for_each(begin, bytes, [packed](std::span<const std::byte> from, std::size_t before) {
        std::memcpy(packed + before, from.data(), from.size());
      });
      data = packed;
    }
    for (std::size_t i = 1; i < size_; ++i) {
      transfers_.send(static_cast<int>((self_ + i) % size_), {data, bytes}, sending_[sent_ % 2]);
    }
    ++sent_;
    return true;
  }

  bool receive(std::size_t member) {
    Receipt& receipt = receipts_[member];
    const std::size_t total = out_[member].bytes();
    if (receipt.posted == chunks(total) || receipt.posted == receipt.stored + 2) return false;
    const std::size_t bytes = chunk_bytes(total, receipt.posted);
    std::byte* to = out_[member].contiguous(receipt.posted * chunk_, bytes);
    if (to == nullptr) to = staged(member, receipt.posted);
    transfers_.recv(static_cast<int>(member), {to, bytes}, receipt.pending[receipt.posted % 2]);
    ++receipt.posted;
    return true;
  }

  bool store(std::size_t member) {
    Receipt& receipt = receipts_[member];
    if (receipt.stored == receipt.posted || receipt.pending[receipt.stored % 2] != 0) return false;
    const std::size_t begin = receipt.stored * chunk_;
    const std::size_t bytes = chunk_bytes(out_[member].bytes(), receipt.stored);
    if (out_[member].contiguous(begin, bytes) == nullptr) {
      const std::byte* from = staged(member, receipt.stored);
      out_[member].for_each(begin, bytes, [from](std::span<std::byte> to, std::size_t before) {
        std::memcpy(to.data(), from + before, to.size());
      });
    }
    ++receipt.stored;
    return true;
  }

  [[nodiscard]] bool complete() const {
    if (sent_ != chunks(in_.bytes()) || sending_[0] + sending_[1] != 0) return false;
    for (std::size_t member = 0; member < size_; ++member) {
      if (member != self_ && receipts_[member].stored != chunks(out_[member].bytes())) return false;
    }
    return true;
  }

  const std::size_t self_;
  const std::size_t size_;
  const SpanList<const std::byte> in_;
  const std::vector<SpanList<std::byte>> out_;  // by set rank
  const std::size_t chunk_;                     // bytes
  Staging::Lease lease_;
  std::vector<Receipt> receipts_;  // by set rank
  std::array<int, 2> sending_{};   // by chunk modulo 2
  std::size_t sent_ = 0;           // chunks
  bool own_copied_ = false;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> direct_allgather(Backend& backend, Staging& staging, GatherPlan plan) {
  const auto bytes_of = [](const auto& spans) {
    std::size_t bytes = 0;
    for (const auto& span : spans) bytes += span.size();
    return bytes;
  };
  const auto size = static_cast<std::size_t>(backend.members().size());
  const auto self = static_cast<std::size_t>(backend.members().self);
  if (plan.out.size() != size || bytes_of(plan.in) != bytes_of(plan.out[self])) {
    return failed_operation(Code::InvalidArgument,
                            "the plan of an allgather does not fit this member's contribution");
  }
  return std::make_unique<DirectAllgather>(backend, staging, std::move(plan));
}

namespace {

/// Posts all transfers at once. The parts are contiguous at both ends, so nothing is staged and all
/// links are busy all the time.
class DirectAlltoall final : public Operation {
 public:
  DirectAlltoall(Backend& backend, AlltoallPlan plan)
      : members_(backend.members()), plan_(std::move(plan)), transfers_(backend) {}

  Result<Step> step() override {
    bool moved = !posted_;
    if (!posted_) post();
    auto exchanged = transfers_.step();
    if (!exchanged) return std::move(exchanged).error();
    moved = moved || *exchanged;
    if (pending_ == 0) return Step::Done;
    return moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  void post() {
    posted_ = true;
    const int size = members_.size();
    for (int distance = 1; distance < size; ++distance) {  // so that not all begin with member 0
      const int to = (members_.self + distance) % size;
      const int from = (members_.self - distance + size) % size;
      transfers_.send(to, plan_.in[static_cast<std::size_t>(to)], pending_);
      transfers_.recv(from, plan_.out[static_cast<std::size_t>(from)], pending_);
    }
    const auto self = static_cast<std::size_t>(members_.self);
    if (!plan_.in[self].empty()) {
      std::memcpy(plan_.out[self].data(), plan_.in[self].data(), plan_.in[self].size());
    }
  }

  const Members& members_;
  const AlltoallPlan plan_;
  bool posted_ = false;
  int pending_ = 0;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> direct_alltoall(Backend& backend, AlltoallPlan plan) {
  return std::make_unique<DirectAlltoall>(backend, std::move(plan));
}

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

namespace {

class DisseminationBarrier final : public Operation {
 public:
  explicit DisseminationBarrier(Backend& backend)
      : size_(backend.members().size()), self_(backend.members().self), transfers_(backend) {}

  Result<Step> step() override {
    bool moved = false;
    while (pending_ == 0) {
      if (distance_ >= size_) return Step::Done;
      transfers_.send((self_ + distance_) % size_, {&said_, 1}, pending_);
      transfers_.recv((self_ - distance_ + size_) % size_, {&heard_, 1}, pending_);
      distance_ *= 2;
      auto exchanged = transfers_.step();
      if (!exchanged) return std::move(exchanged).error();
      moved = true;
    }
    if (!moved) {
      auto exchanged = transfers_.step();
      if (!exchanged) return std::move(exchanged).error();
      moved = *exchanged;
    }
    return moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  const int size_;
  const int self_;
  int distance_ = 1;  // of the next round
  int pending_ = 0;
  std::byte said_{1};
  std::byte heard_{0};
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> dissemination_barrier(Backend& backend) {
  return std::make_unique<DisseminationBarrier>(backend);
}

}  // namespace farandole

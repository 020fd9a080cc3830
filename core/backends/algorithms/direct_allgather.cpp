#include <algorithm>
#include <array>
#include <vector>

#include "backends/algorithms/direct_collectives.h"
#include "backends/algorithms/transfers.h"
#include "backends/buffers/span_list.h"
#include "backends/failed_operation.h"
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

}  // namespace farandole

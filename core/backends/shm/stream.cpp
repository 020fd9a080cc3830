#include "backends/shm/collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/buffers/spans.h"
#include "backends/shm/chunks.h"
#include "kernels/copy.h"
#include "rounding.h"

namespace farandole {
namespace {

/// Chunk k carries the k-th part of every member's contribution; short ones have run out by then.
class StreamAllgather final : public ShmChunks {
 public:
  StreamAllgather(ShmArena& arena, GatherPlan plan)
      : ShmChunks(arena), chunk_bytes_(arena.tuning().chunk_bytes), in_(std::move(plan.in)) {
    std::size_t longest = 0;
    for (auto& spans : plan.out) {
      out_.emplace_back(std::move(spans));
      longest = std::max(longest, out_.back().bytes());
    }
    set_chunks(ceil_div(longest, chunk_bytes_));
    std::size_t result = 0;
    for (const SpanList<std::byte>& out : out_) result += out.bytes();
    streaming_ = result >= streaming_bytes();
  }

 private:
  /// How much of a contribution chunk `chunk` carries.
  [[nodiscard]] std::size_t part_of(std::size_t contribution, std::size_t chunk) const noexcept {
    return std::min(chunk_bytes_, contribution - std::min(contribution, chunk * chunk_bytes_));
  }

  void fill(std::size_t chunk, std::byte* slot) override {
    in_.for_each(chunk * chunk_bytes_, part_of(in_.bytes(), chunk),
                 [&](std::span<const std::byte> part, std::size_t at) {
                   arena().copies().copy(slot + at, part.data(), part.size(), copy_plain);
                 });
  }

  void drain(std::size_t chunk) override {
    // Starting beside oneself, so that not all members read the same slot at once.
    for (int d = 0; d < arena().size(); ++d) {
      const int member = (arena().self() + d) % arena().size();
      take(member, chunk, slot_of(member, chunk));
    }
  }

  /// What chunk `chunk` carries of a member's contribution, from `bytes` to the output.
  void take(int member, std::size_t chunk, const std::byte* bytes) {
    const SpanList<std::byte>& out = out_[static_cast<std::size_t>(member)];
    out.for_each(chunk * chunk_bytes_, part_of(out.bytes(), chunk),
                 [&](std::span<std::byte> part, std::size_t at) {
                   copy_out(part.data(), bytes + at, part.size(), streaming_);
                 });
  }

  std::size_t chunk_bytes_;
  SpanList<const std::byte> in_;
  std::vector<SpanList<std::byte>> out_;  // by set rank
  bool streaming_ = false;
};

/// The root fills its slots as fast as all others drain them; the others only watch the root.
class StreamBroadcast final : public Operation {
 public:
  StreamBroadcast(ShmArena& arena, std::span<const std::byte> in, std::span<std::byte> out,
                  int root)
      : arena_(arena),
        in_(in),
        out_(out),
        root_(root),
        chunk_bytes_(arena.tuning().chunk_bytes),
        chunks_(ceil_div(out.size(), chunk_bytes_)) {}

  Result<Step> step() override {
    if (chunks_ == 0) return Step::Done;
    if (!taken_) {
      range_ = arena_.take_chunks(chunks_);
      taken_ = true;
    }
    const bool is_root = arena_.self() == root_;
    if (is_root ? !arena_.may_fill(range_, done_)
                : !arena_.has_reached(root_, ShmMark::Filled, range_.after(done_))) {
      return Step::Blocked;
    }
    if (!is_root && !arena_.same(root_, ShmMark::Filled, range_.after(done_))) {
      return arena_.mixed(root_, ShmMark::Filled, range_.after(done_));
    }
    const std::size_t at = done_ * chunk_bytes_;
    const std::size_t bytes = std::min(chunk_bytes_, out_.size() - at);
    std::byte* const slot = arena_.slot(root_, range_, done_);
    if (is_root) {
      arena_.copies().copy(slot, in_.data() + at, bytes);
      arena_.publish(ShmMark::Filled, range_.after(done_));
    }
    if (!is_root || out_.data() != in_.data()) {
      copy_out(out_.data() + at, is_root ? in_.data() + at : slot, bytes,
               out_.size() >= streaming_bytes());
    }
    ++done_;
    if (done_ == chunks_) {
      arena_.finish(range_);
      return Step::Done;
    }
    if (!is_root) arena_.publish(ShmMark::Drained, range_.after(done_ - 1));
    return Step::Advanced;
  }

  std::vector<Rank> waiting_for() const override {
    if (!taken_ || done_ == chunks_) return {};
    if (arena_.self() == root_) return arena_.not_drained(range_, done_);
    std::vector<Rank> behind = arena_.behind(ShmMark::Filled, range_.after(done_));
    std::erase_if(behind, [&](Rank rank) { return rank != arena_.rank(root_); });
    return behind;
  }

 private:
  ShmArena& arena_;
  std::span<const std::byte> in_;
  std::span<std::byte> out_;
  int root_;
  std::size_t chunk_bytes_;
  std::size_t chunks_;
  bool taken_ = false;
  ShmArena::Chunks range_;
  std::size_t done_ = 0;
};

}  // namespace

std::unique_ptr<Operation> stream_allgather(ShmArena& arena, GatherPlan plan) {
  return std::make_unique<StreamAllgather>(arena, std::move(plan));
}

std::unique_ptr<Operation> stream_broadcast(ShmArena& arena, std::span<const std::byte> in,
                                            std::span<std::byte> out, int root) {
  return std::make_unique<StreamBroadcast>(arena, in, out, root);
}

}  // namespace farandole

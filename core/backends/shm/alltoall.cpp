#include "backends/shm/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/shm/chunks.h"
#include "kernels/copy.h"
#include "rounding.h"

namespace farandole {
namespace {

/// The table, as a part of the run of bytes, and the parts behind it.
std::vector<std::span<const std::byte>> run_of(const std::vector<std::span<const std::byte>>& in,
                                               int self,
                                               std::vector<AlltoallStream::Offset>& table) {
  const std::size_t size = in.size();
  table.resize(size);
  std::vector<std::span<const std::byte>> run{std::as_bytes(std::span(table))};
  std::size_t end = run.front().size();
  for (std::size_t d = 1; d < size; ++d) {
    const std::size_t member = (static_cast<std::size_t>(self) + d) % size;
    table[member] = end;
    end += in[member].size();
    run.push_back(in[member]);
  }
  return run;
}

/// Chunk k carries the k-th part of what every member brings. A member takes out what lies between
/// the begin of its part, which it finds in the table, and its end.
class StreamAlltoall final : public ShmChunks {
 public:
  StreamAlltoall(ShmArena& arena, AlltoallPlan plan)
      : ShmChunks(arena),
        chunk_bytes_(arena.tuning().chunk_bytes),
        self_(static_cast<std::size_t>(arena.self())),
        out_(std::move(plan.out)),
        own_(plan.in[self_]),
        in_(plan.in, arena.self()),
        begins_(out_.size()) {
    set_chunks(ceil_div(AlltoallStream::table_bytes(arena.size()) + plan.longest, chunk_bytes_));
    std::size_t result = 0;
    for (const auto& part : out_) result += part.size();
    streaming_ = result >= streaming_bytes();
  }

 private:
  void fill(std::size_t chunk, std::byte* slot) override {
    in_.copy(slot, chunk * chunk_bytes_, chunk_bytes_, arena().copies());
  }

  void drain(std::size_t chunk) override {
    const std::size_t begin = chunk * chunk_bytes_;
    for (std::size_t d = 1; d < out_.size(); ++d) {
      const std::size_t member = (self_ + out_.size() - d) % out_.size();
      take(member, begin, slot_of(static_cast<int>(member), chunk));
    }
    if (begin < own_.size()) {
      const std::size_t bytes = std::min(chunk_bytes_, own_.size() - begin);
      copy_out(out_[self_].data() + begin, own_.data() + begin, bytes, streaming_);
    }
  }

  void take(std::size_t member, std::size_t begin, const std::byte* slot) {
    // A chunk is a multiple of 64 bytes: the number lies in one of them, before any of the bytes.
    const std::size_t entry = self_ * sizeof(AlltoallStream::Offset);
    if (entry >= begin && entry < begin + chunk_bytes_) {
      std::memcpy(&begins_[member], slot + (entry - begin), sizeof(AlltoallStream::Offset));
    }
    const std::span<std::byte> out = out_[member];
    const std::size_t first = begins_[member];  // may be anything: what it leads to is clipped
    const std::size_t from = std::max(first, begin);
    const std::size_t end = begin + chunk_bytes_;
    if (out.empty() || from >= end || from - first >= out.size()) return;
    const std::size_t bytes = std::min(end - from, out.size() - (from - first));
    copy_out(out.data() + (from - first), slot + (from - begin), bytes, streaming_);
  }

  const std::size_t chunk_bytes_;
  const std::size_t self_;
  const std::vector<std::span<std::byte>> out_;  // by set rank
  const std::span<const std::byte> own_;
  const AlltoallStream in_;
  std::vector<AlltoallStream::Offset> begins_;  // of my part in what member m brings
  bool streaming_ = false;
};

}  // namespace

AlltoallStream::AlltoallStream(const std::vector<std::span<const std::byte>>& in, int self)
    : bytes_(run_of(in, self, table_)) {}

void AlltoallStream::copy(std::byte* to, std::size_t begin, std::size_t most,
                          PeerCopies& copies) const {
  const std::size_t count = std::min(most, bytes_.bytes() - std::min(bytes_.bytes(), begin));
  if (count == 0) return;
  bytes_.for_each(begin, count, [&](std::span<const std::byte> part, std::size_t at) {
    copies.copy(to + at, part.data(), part.size(), copy_plain);
  });
}

std::unique_ptr<Operation> stream_alltoall(ShmArena& arena, AlltoallPlan plan) {
  return std::make_unique<StreamAlltoall>(arena, std::move(plan));
}

}  // namespace farandole

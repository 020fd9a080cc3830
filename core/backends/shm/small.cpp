#include "backends/shm/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "backends/buffers/spans.h"

namespace farandole {
namespace {

/// The meeting itself; what is brought and what is taken away differs.
class Meeting : public Operation {
 public:
  explicit Meeting(ShmArena& arena) noexcept : arena_(arena) {}

  Result<Step> step() override {
    bool moved = false;
    if (!arrived_) {
      sequence_ = arena_.next_small();
      bring(arena_.small_slot(arena_.self(), sequence_));
      arena_.publish(ShmMark::Small, sequence_ + 1);
      arrived_ = true;
      moved = true;
    }
    if (!arena_.all_reached(ShmMark::Small, sequence_ + 1)) {
      return moved ? Step::Advanced : Step::Blocked;
    }
    if (auto fine = arena_.check(ShmMark::Small, sequence_ + 1); !fine) {
      return std::move(fine).error();
    }
    take();
    return Step::Done;
  }

  std::vector<Rank> waiting_for() const override {
    return arrived_ ? arena_.behind(ShmMark::Small, sequence_ + 1) : std::vector<Rank>();
  }

 protected:
  [[nodiscard]] ShmArena& arena() const noexcept { return arena_; }
  [[nodiscard]] const std::byte* slot_of(int member) const noexcept {
    return arena_.small_slot(member, sequence_);
  }

 private:
  virtual void bring(std::byte* slot) = 0;
  virtual void take() = 0;

  ShmArena& arena_;
  std::uint32_t sequence_ = 0;
  bool arrived_ = false;
};

class SmallAllreduce final : public Meeting {
 public:
  SmallAllreduce(ShmArena& arena, std::span<const Piece> pieces, const Reduction& reduction)
      : Meeting(arena), pieces_(pieces, reduction.dtype), reduction_(reduction) {}

 private:
  void bring(std::byte* slot) override {
    pieces_.pack(slot, 0, pieces_.count(), reduction_.prescale);
  }

  /// Everybody computes everything, straight into the outputs.
  void take() override {
    const std::size_t element = size_of(reduction_.dtype);
    std::array<const std::byte*, kMaxLocalRanks> sources;
    const auto members = static_cast<std::size_t>(arena().size());
    pieces_.for_each(0, pieces_.count(),
                     [&](const Piece& piece, std::size_t, std::size_t count, std::size_t before) {
                       for (std::size_t q = 0; q < members; ++q) {
                         sources[q] = slot_of(static_cast<int>(q)) + before * element;
                       }
                       reduce(piece.out, std::span(sources.data(), members), count,
                              reduction_.dtype, reduction_.op, reduction_.postscale);
                     });
  }

  PieceArray pieces_;
  Reduction reduction_;
};

class SmallAllgather final : public Meeting {
 public:
  SmallAllgather(ShmArena& arena, GatherPlan plan) : Meeting(arena), plan_(std::move(plan)) {}

 private:
  void bring(std::byte* slot) override {
    const SpanList<const std::byte> in(std::move(plan_.in));
    in.for_each(0, in.bytes(), [&](std::span<const std::byte> part, std::size_t at) {
      std::memcpy(slot + at, part.data(), part.size());
    });
  }
  void take() override {
    for (std::size_t q = 0; q < plan_.out.size(); ++q) {
      const std::byte* const slot = slot_of(static_cast<int>(q));
      const SpanList<std::byte> out(std::move(plan_.out[q]));
      out.for_each(0, out.bytes(), [&](std::span<std::byte> part, std::size_t at) {
        std::memcpy(part.data(), slot + at, part.size());
      });
    }
  }

  GatherPlan plan_;
};

/// Everybody brings everything, and reduces what is its own.
class SmallReducescatter final : public Meeting {
 public:
  SmallReducescatter(ShmArena& arena, std::span<const ScatterPiece> pieces,
                     const Reduction& reduction)
      : Meeting(arena), pieces_(pieces.begin(), pieces.end()), reduction_(reduction) {}

 private:
  void bring(std::byte* slot) override {
    for (const ScatterPiece& piece : pieces_) {
      const std::size_t count = piece.begins.back();
      scale_copy(slot, piece.in, count, reduction_.dtype, reduction_.prescale);
      slot += count * size_of(reduction_.dtype);
    }
  }

  void take() override {
    const std::size_t element = size_of(reduction_.dtype);
    const auto self = static_cast<std::size_t>(arena().self());
    const auto members = static_cast<std::size_t>(arena().size());
    std::array<const std::byte*, kMaxLocalRanks> sources;
    std::size_t before = 0;  // elements of earlier pieces
    for (const ScatterPiece& piece : pieces_) {
      const std::size_t begin = piece.begins[self];
      const std::size_t count = piece.begins[self + 1] - begin;
      for (std::size_t q = 0; q < members; ++q) {
        sources[q] = slot_of(static_cast<int>(q)) + (before + begin) * element;
      }
      reduce(piece.out, std::span(sources.data(), members), count, reduction_.dtype, reduction_.op,
             reduction_.postscale);
      before += piece.begins.back();
    }
  }

  std::vector<ScatterPiece> pieces_;
  Reduction reduction_;
};

class SmallAlltoall final : public Meeting {
 public:
  SmallAlltoall(ShmArena& arena, AlltoallPlan plan) : Meeting(arena), plan_(std::move(plan)) {}

 private:
  void bring(std::byte* slot) override {
    AlltoallStream(plan_.in, arena().self()).copy(slot, 0, kShmSmallBytes, arena().copies());
  }

  void take() override {
    const auto self = static_cast<std::size_t>(arena().self());
    for (std::size_t q = 0; q < plan_.out.size(); ++q) {
      const std::span<std::byte> out = plan_.out[q];
      if (out.empty()) continue;
      if (q == self) {
        std::memcpy(out.data(), plan_.in[q].data(), out.size());
        continue;
      }
      const std::byte* const slot = slot_of(static_cast<int>(q));
      AlltoallStream::Offset begin = 0;
      std::memcpy(&begin, slot + self * sizeof begin, sizeof begin);
      // What another process wrote leads nowhere outside its slot.
      const std::size_t at = std::min<std::size_t>(begin, kShmSmallBytes);
      std::memcpy(out.data(), slot + at, std::min(out.size(), kShmSmallBytes - at));
    }
  }

  AlltoallPlan plan_;
};

class BarrierMeeting final : public Meeting {
 public:
  using Meeting::Meeting;

 private:
  void bring(std::byte*) override {}
  void take() override {}
};

}  // namespace

std::unique_ptr<Operation> small_allreduce(ShmArena& arena, std::span<const Piece> pieces,
                                           const Reduction& reduction) {
  return std::make_unique<SmallAllreduce>(arena, pieces, reduction);
}

std::unique_ptr<Operation> small_allgather(ShmArena& arena, GatherPlan plan) {
  return std::make_unique<SmallAllgather>(arena, std::move(plan));
}

std::unique_ptr<Operation> small_reducescatter(ShmArena& arena,
                                               std::span<const ScatterPiece> pieces,
                                               const Reduction& reduction) {
  return std::make_unique<SmallReducescatter>(arena, pieces, reduction);
}

std::unique_ptr<Operation> small_alltoall(ShmArena& arena, AlltoallPlan plan) {
  return std::make_unique<SmallAlltoall>(arena, std::move(plan));
}

std::unique_ptr<Operation> shm_barrier(ShmArena& arena) {
  return std::make_unique<BarrierMeeting>(arena);
}

}  // namespace farandole

#include "backends/staged/plans.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "backends/buffers/spans.h"
#include "backends/operation.h"
#include "rounding.h"

namespace farandole {

namespace {

constexpr std::size_t kSlot = EngineDevice::kSlotBytes;
constexpr std::size_t kAligned = 64;  // bytes

bool on_device(EngineDevice* device, const void* address) {
  return device != nullptr && device->holds(address);
}

class AllreducePlan final : public StagedPlan {
 public:
  AllreducePlan(Backend& host, EngineDevice* device, std::span<const Piece> pieces,
                const Reduction& reduction)
      : host_(host),
        reduction_(reduction),
        element_(size_of(reduction.dtype)),
        batch_(pieces, reduction.dtype) {
    for (const Piece& piece : batch_.pieces()) {
      places_.push_back({on_device(device, piece.in), on_device(device, piece.out)});
    }
  }

  std::size_t chunks() const override {
    return std::max<std::size_t>(ceil_div(batch_.count(), kSlot / element_), 1);
  }

  StagedChunk chunk(std::size_t number, std::byte* slot) override {
    const std::size_t begin = number * (kSlot / element_);
    const std::size_t count = std::min(kSlot / element_, batch_.count() - begin);
    StagedChunk chunk;
    std::vector<Piece> pieces;
    if (count > 0) {
      batch_.for_each(
          begin, count,
          [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t before) {
            const Place place = places_[static_cast<std::size_t>(&piece - batch_.pieces().data())];
            const std::size_t bytes = elements * element_;
            std::byte* const here = slot + before * element_;
            const std::byte* in = piece.in + first * element_;
            std::byte* out = piece.out + first * element_;
            if (place.in) chunk.in.push_back({in, here, bytes});
            if (place.out) chunk.out.push_back({here, out, bytes});
            append(pieces, {place.in ? here : in, place.out ? here : out, elements});
          });
    }
    chunk.run = [this, pieces = std::move(pieces)] {
      return host_.start(Allreduce{pieces, reduction_});
    };
    return chunk;
  }

 private:
  struct Place {  // on the device
    bool in = false;
    bool out = false;
  };

  /// Neighbours become one piece.
  void append(std::vector<Piece>& pieces, const Piece& next) const {
    if (!pieces.empty()) {
      Piece& last = pieces.back();
      const std::size_t bytes = last.count * element_;
      if (last.in + bytes == next.in && last.out + bytes == next.out && last.in == last.out) {
        last.count += next.count;
        return;
      }
    }
    pieces.push_back(next);
  }

  Backend& host_;
  const Reduction reduction_;
  const std::size_t element_;  // bytes
  const PieceArray batch_;
  std::vector<Place> places_;  // by piece of batch_
};

/// Takes a window of every member's contribution at a time.
class AllgatherPlan final : public StagedPlan {
 public:
  AllgatherPlan(Backend& host, EngineDevice* device, GatherPlan plan)
      : host_(host), device_(device), plan_(std::move(plan)) {
    const auto size = static_cast<std::size_t>(host.members().size());
    window_ = std::max(kSlot / (size + 1) / kAligned, std::size_t{1}) * kAligned;
    longest_ = total_bytes(plan_.in);
    for (const auto& member : plan_.out) longest_ = std::max(longest_, total_bytes(member));
  }

  std::size_t chunks() const override {
    return std::max<std::size_t>(ceil_div(longest_, window_), 1);
  }

  StagedChunk chunk(std::size_t number, std::byte* slot) override {
    const std::size_t begin = number * window_;
    const std::size_t end = begin + window_;
    StagedChunk chunk;
    GatherPlan part;
    for_each_part(plan_.in, begin, end, [&](std::span<const std::byte> bytes) {
      part.in.push_back(take(chunk, bytes, slot));
    });
    for (const auto& member : plan_.out) {
      auto& out = part.out.emplace_back();
      for_each_part(member, begin, end,
                    [&](std::span<std::byte> bytes) { out.push_back(give(chunk, bytes, slot)); });
    }
    chunk.at_once = chunk.in.empty();
    chunk.run = [this, part = std::move(part)]() mutable { return host_.start(std::move(part)); };
    return chunk;
  }

 private:
  std::span<const std::byte> take(StagedChunk& chunk, std::span<const std::byte> bytes,
                                  std::byte*& slot) const {
    if (!on_device(device_, bytes.data())) return bytes;
    std::byte* const here = std::exchange(slot, slot + bytes.size());
    chunk.in.push_back({bytes.data(), here, bytes.size()});
    return {here, bytes.size()};
  }
  std::span<std::byte> give(StagedChunk& chunk, std::span<std::byte> bytes,
                            std::byte*& slot) const {
    if (!on_device(device_, bytes.data())) return bytes;
    std::byte* const here = std::exchange(slot, slot + bytes.size());
    chunk.out.push_back({here, bytes.data(), bytes.size()});
    return {here, bytes.size()};
  }

  Backend& host_;
  EngineDevice* device_;
  GatherPlan plan_;
  std::size_t window_ = 0;   // bytes
  std::size_t longest_ = 0;  // bytes that a member brings
};

/// Takes a window of every member's part at a time, packed one after the other.
class ReducescatterPlan final : public StagedPlan {
 public:
  ReducescatterPlan(Backend& host, EngineDevice* device, std::span<const ScatterPiece> pieces,
                    const Reduction& reduction)
      : host_(host),
        reduction_(reduction),
        element_(size_of(reduction.dtype)),
        self_(static_cast<std::size_t>(host.members().self)) {
    const auto size = static_cast<std::size_t>(host.members().size());
    window_ = std::max(kSlot / (size + 1) / kAligned, std::size_t{1}) * kAligned / element_;
    in_.resize(size);
    for (const ScatterPiece& piece : pieces) {
      for (std::size_t m = 0; m < size; ++m) {
        const std::size_t elements = piece.begins[m + 1] - piece.begins[m];
        in_[m].emplace_back(piece.in + piece.begins[m] * element_, elements * element_);
        if (m != self_) continue;
        out_.emplace_back(piece.out, elements * element_);
        by_host_.push_back(!on_device(device, piece.out));
      }
    }
    for (const auto& member : in_) longest_ = std::max(longest_, total_bytes(member) / element_);
  }

  std::size_t chunks() const override {
    return std::max<std::size_t>(ceil_div(longest_, window_), 1);
  }

  StagedChunk chunk(std::size_t number, std::byte* slot) override {
    const std::size_t begin = number * window_ * element_;
    const std::size_t end = begin + window_ * element_;
    StagedChunk chunk;
    ScatterPiece part{.in = slot, .out = nullptr, .begins = {0}};
    for (const auto& member : in_) {
      for_each_part(member, begin, end, [&](std::span<const std::byte> bytes) {
        chunk.in.push_back({bytes.data(), slot, bytes.size()});
        slot += bytes.size();
      });
      part.begins.push_back(static_cast<std::size_t>(slot - part.in) / element_);
    }
    part.out = slot;
    std::size_t piece = 0;
    std::size_t at = 0;
    for (const auto& whole : out_) {
      const bool by_host = by_host_[piece++];
      const std::size_t first = std::max(begin, at);
      const std::size_t last = std::min(end, at + whole.size());
      if (first < last) {
        chunk.out.push_back({slot, whole.data() + (first - at), last - first, by_host});
        slot += last - first;
      }
      at += whole.size();
    }
    chunk.run = [this, part = std::move(part)] {
      return host_.start(Reducescatter{{&part, 1}, reduction_});
    };
    return chunk;
  }

 private:
  Backend& host_;
  const Reduction reduction_;
  const std::size_t element_;  // bytes
  const std::size_t self_;
  std::vector<std::vector<std::span<const std::byte>>> in_;  // by member, the parts of all pieces
  std::vector<std::span<std::byte>> out_;                    // the own parts
  std::vector<bool> by_host_;                                // of out_
  std::size_t window_ = 0;                                   // elements
  std::size_t longest_ = 0;                                  // elements of a member
};

/// Cuts what goes from each member to each into the same number of parts.
class AlltoallStaging final : public StagedPlan {
 public:
  AlltoallStaging(Backend& host, EngineDevice* device, AlltoallPlan plan)
      : host_(host), device_(device), plan_(std::move(plan)) {
    // A part may be longer than the others by a byte.
    const auto size = static_cast<std::size_t>(host.members().size());
    room_ = std::max(kSlot, 4 * size) - size;
    chunks_ = std::max<std::size_t>(ceil_div(plan_.longest, room_), 1);
    for (const auto& part : plan_.out) given_ = given_ || on_device(device, part.data());
    if (given_) received_.emplace(device, std::max<std::size_t>(total_bytes(plan_.out), 1));
  }

  std::size_t chunks() const override { return chunks_; }

  StagedChunk chunk(std::size_t number, std::byte* slot) override {
    StagedChunk chunk;
    AlltoallPlan part;
    const std::size_t size = plan_.in.size();
    part.longest = plan_.longest / chunks_ + size;
    std::byte* received = received_ ? received_->data() : nullptr;
    if (given_ && received == nullptr) {
      chunk.run = [] {
        return failed_operation(Code::Internal, "no pinned host memory for an alltoall");
      };
      return chunk;
    }
    for (std::size_t m = 0; m < size; ++m) {
      auto in = cut(plan_.in[m], number);
      if (on_device(device_, in.data())) {
        std::byte* const here = std::exchange(slot, slot + in.size());
        chunk.in.push_back({in.data(), here, in.size()});
        in = {here, in.size()};
      }
      part.in.push_back(in);
      auto out = cut(plan_.out[m], number);
      if (given_) {
        std::byte* const here = received + (out.data() - plan_.out[m].data());
        chunk.out.push_back({here, out.data(), out.size()});
        received += plan_.out[m].size();
        out = {here, out.size()};
      }
      part.out.push_back(out);
    }
    chunk.at_once = chunk.in.empty();
    chunk.run = [this, part = std::move(part)]() mutable { return host_.start(std::move(part)); };
    return chunk;
  }

 private:
  template <typename Byte>
  [[nodiscard]] std::span<Byte> cut(std::span<Byte> bytes, std::size_t number) const {
    const auto place = [&](std::size_t n) {
      return bytes.size() / chunks_ * n + std::min(n, bytes.size() % chunks_);
    };
    return bytes.subspan(place(number), place(number + 1) - place(number));
  }

  Backend& host_;
  EngineDevice* device_;
  AlltoallPlan plan_;
  std::size_t room_ = 0;  // bytes of a slot
  std::size_t chunks_ = 1;
  bool given_ = false;  // results go to memory of the device
  std::optional<StagedMemory> received_;
};

class RangePlan final : public StagedPlan {
 public:
  RangePlan(EngineDevice* device, std::span<const std::byte> in, std::span<std::byte> out,
            RunRange run)
      : in_(in),
        out_(out),
        on_device_(on_device(device, in.data()), on_device(device, out.data())),
        bytes_(std::max(in.size(), out.size())),
        run_(std::move(run)) {}

  std::size_t chunks() const override { return std::max<std::size_t>(ceil_div(bytes_, kSlot), 1); }

  StagedChunk chunk(std::size_t number, std::byte* slot) override {
    StagedChunk chunk;
    auto in = cut(in_, number);
    auto out = cut(out_, number);
    const bool same = in.data() == out.data();
    if (on_device_.first && !in.empty()) {
      chunk.in.push_back({in.data(), slot, in.size()});
      in = {slot, in.size()};
    }
    if (on_device_.second && !out.empty()) {
      if (!same) chunk.out.push_back({slot, out.data(), out.size()});
      out = {slot, out.size()};
    }
    chunk.at_once = in_.empty();
    chunk.run = [this, in, out] { return run_(in, out); };
    return chunk;
  }

 private:
  template <typename Byte>
  [[nodiscard]] static std::span<Byte> cut(std::span<Byte> bytes, std::size_t number) {
    if (bytes.empty()) return bytes;
    return bytes.subspan(number * kSlot, std::min(kSlot, bytes.size() - number * kSlot));
  }

  std::span<const std::byte> in_;
  std::span<std::byte> out_;
  std::pair<bool, bool> on_device_;  // on the device: in, out
  std::size_t bytes_;
  RunRange run_;
};

class WholePlan final : public StagedPlan {
 public:
  WholePlan(EngineDevice* device, std::vector<HostedTensor> tensors, HostWork work)
      : device_(device),
        tensors_(std::move(tensors)),
        work_(std::move(work)),
        memory_(device, total(tensors_)) {}

  std::size_t chunks() const override { return 1; }

  StagedChunk chunk(std::size_t /*number*/, std::byte* /*slot*/) override {
    StagedChunk chunk;
    std::byte* memory = memory_.data();
    if (memory == nullptr) {
      chunk.run = [] {
        return failed_operation(Code::Backend,
                                "no pinned host memory to copy tensors of a device through");
      };
      return chunk;
    }
    std::vector<std::byte*> copies;
    for (const HostedTensor& tensor : tensors_) {
      std::byte* const here = std::exchange(memory, memory + round_up(tensor.in_bytes, kAligned));
      chunk.in.push_back({tensor.in, here, tensor.in_bytes});
      const bool by_host = device_ != nullptr && !device_->holds(tensor.out);
      chunk.out.push_back({here, tensor.out, tensor.out_bytes, by_host});
      copies.push_back(here);
    }
    chunk.run = [this, copies = std::move(copies)] { return work_(copies); };
    return chunk;
  }

 private:
  static std::size_t total(std::span<const HostedTensor> tensors) {
    std::size_t bytes = kAligned;
    for (const HostedTensor& tensor : tensors) bytes += round_up(tensor.in_bytes, kAligned);
    return bytes;
  }

  EngineDevice* device_;
  std::vector<HostedTensor> tensors_;
  HostWork work_;
  StagedMemory memory_;
};

}  // namespace

template <>
std::unique_ptr<StagedPlan> staged_plan(Backend& host, EngineDevice* device, Allreduce verb) {
  return std::make_unique<AllreducePlan>(host, device, verb.pieces, verb.reduction);
}

template <>
std::unique_ptr<StagedPlan> staged_plan(Backend& host, EngineDevice* device, GatherPlan plan) {
  return std::make_unique<AllgatherPlan>(host, device, std::move(plan));
}

template <>
std::unique_ptr<StagedPlan> staged_plan(Backend& host, EngineDevice* device, Reducescatter verb) {
  return std::make_unique<ReducescatterPlan>(host, device, verb.pieces, verb.reduction);
}

template <>
std::unique_ptr<StagedPlan> staged_plan(Backend& host, EngineDevice* device, AlltoallPlan plan) {
  return std::make_unique<AlltoallStaging>(host, device, std::move(plan));
}

std::unique_ptr<StagedPlan> staged_range(EngineDevice* device, std::span<const std::byte> in,
                                         std::span<std::byte> out, RunRange run) {
  return std::make_unique<RangePlan>(device, in, out, std::move(run));
}

std::unique_ptr<StagedPlan> staged_whole(EngineDevice* device, std::vector<HostedTensor> tensors,
                                         HostWork work) {
  return std::make_unique<WholePlan>(device, std::move(tensors), std::move(work));
}

}  // namespace farandole

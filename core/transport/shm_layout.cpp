#include "transport/shm_layout.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <string_view>

#include "rounding.h"
#include "text.h"

namespace farandole {

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "flags are shared between processes");
static_assert(sizeof(ShmFlag) == 128 && sizeof(ShmFlags) == 6 * 128 && sizeof(RingHead) == 256);
static_assert(sizeof(ProposalSlot) == 32 + kProposalBytes && sizeof(ProposalSlot) % 128 == 0);
static_assert(kShmSlotBytes % 4096 == 0 && kShmSmallBytes % 4096 == 0);

/// Address space for tensors. With many ranks each gets less, because every rank maps the heaps of
/// all.
constexpr std::size_t heap_bytes(int local_size) noexcept {
  constexpr std::size_t kMost = std::size_t{8} << 30;
  constexpr std::size_t kTogether = std::size_t{1} << 40;
  return std::min(kMost, std::bit_floor(kTogether / static_cast<std::size_t>(local_size)));
}

/// Divides about `total` bytes among the rings of a rank, whatever the number of readers.
constexpr std::size_t ring_bytes(std::size_t total, std::size_t most, int local_size) noexcept {
  const std::size_t share = std::bit_floor(total / static_cast<std::size_t>(local_size));
  return std::clamp(share, std::size_t{4096}, most);
}

/// From the start of a channel.
struct ChannelOffsets {
  explicit ChannelOffsets(std::uint32_t count) noexcept
      : proposals(round_up(kPlaces + count * sizeof(ShmPlaces), 128)),
        small(round_up(proposals + sizeof(ProposalBoard), 4096)),
        slots(small + kShmSmallSlots * kShmSmallBytes),
        end(slots + count * kShmSlotBytes) {}
  static constexpr std::size_t kPlaces = sizeof(ShmFlags);
  static_assert(kPlaces % 128 == 0);
  std::size_t proposals, small, slots, end;
};

/// From the start of the segment.
struct Offsets {
  explicit Offsets(int local_size) noexcept
      : wide(shm_slots(local_size, 0)), narrow(shm_slots(local_size, kNarrowShmChannels)) {
    const auto readers = static_cast<std::size_t>(local_size);
    message_bytes = ring_bytes(std::size_t{256} << 10, std::size_t{64} << 10, local_size);
    pipe_bytes = ring_bytes(std::size_t{1} << 20, std::size_t{128} << 10, local_size);
    cause = sizeof(BellWord);
    beat = cause + round_up(sizeof(CauseRecord), 128);
    card = beat + sizeof(BeatWord);
    messages = card + sizeof(MemoryCard);
    pipes = messages + readers * (sizeof(RingHead) + message_bytes);
    channels = round_up(pipes + readers * (sizeof(RingHead) + pipe_bytes), 4096);
  }
  [[nodiscard]] const ChannelOffsets& in(int channel) const noexcept {
    return channel < kNarrowShmChannels ? wide : narrow;
  }
  [[nodiscard]] std::size_t channel(int index) const noexcept {
    const auto before = static_cast<std::size_t>(std::min(index, kNarrowShmChannels));
    return channels + before * wide.end + (static_cast<std::size_t>(index) - before) * narrow.end;
  }
  std::size_t message_bytes, pipe_bytes;
  std::size_t cause, beat, card, messages, pipes, channels;
  ChannelOffsets wide, narrow;
};

RingMemory ring_at(std::byte* base, std::size_t index, std::size_t bytes) noexcept {
  std::byte* const start = base + index * (sizeof(RingHead) + bytes);
  return {reinterpret_cast<RingHead*>(start), {start + sizeof(RingHead), bytes}};
}

}  // namespace

std::size_t segment_bytes(int local_size) noexcept {
  return Offsets(std::clamp(local_size, 1, kMaxLocalRanks)).channel(kShmChannels);
}

std::size_t segment_file_bytes(int local_size) noexcept {
  // Both are multiples of a page.
  return segment_bytes(local_size) + heap_bytes(std::clamp(local_size, 1, kMaxLocalRanks));
}

ShmExtent heap_extent(int local_size, std::size_t file_bytes) noexcept {
  const std::size_t offset = segment_bytes(local_size);
  const std::size_t end = std::min(file_bytes, segment_file_bytes(local_size)) / 4096 * 4096;
  return {offset, end > offset ? end - offset : 0};
}

std::size_t segment_base_bytes(int local_size) noexcept {
  return Offsets(std::clamp(local_size, 1, kMaxLocalRanks)).channel(1);
}

ShmExtent channel_extent(int local_size, int channel) noexcept {
  const Offsets at(std::clamp(local_size, 1, kMaxLocalRanks));
  return {at.channel(channel), at.in(channel).end};
}

ShmView::ShmView(std::span<std::byte> memory, int local_size) noexcept
    : base_(memory.data()), local_size_(local_size) {
  assert(local_size >= 1 && local_size <= kMaxLocalRanks);
  assert(memory.size() >= segment_base_bytes(local_size));
  assert(reinterpret_cast<std::uintptr_t>(base_) % 128 == 0);
}

BellWord& ShmView::bell() const noexcept { return *reinterpret_cast<BellWord*>(base_); }

CauseRecord& ShmView::cause() const noexcept {
  return *reinterpret_cast<CauseRecord*>(base_ + Offsets(local_size_).cause);
}

BeatWord& ShmView::beat() const noexcept {
  return *reinterpret_cast<BeatWord*>(base_ + Offsets(local_size_).beat);
}

MemoryCard& ShmView::card() const noexcept {
  return *reinterpret_cast<MemoryCard*>(base_ + Offsets(local_size_).card);
}

RingMemory ShmView::messages_to(int local_index) const noexcept {
  assert(local_index >= 0 && local_index < local_size_);
  const Offsets at(local_size_);
  return ring_at(base_ + at.messages, static_cast<std::size_t>(local_index), at.message_bytes);
}

RingMemory ShmView::pipe_to(int local_index) const noexcept {
  assert(local_index >= 0 && local_index < local_size_);
  const Offsets at(local_size_);
  return ring_at(base_ + at.pipes, static_cast<std::size_t>(local_index), at.pipe_bytes);
}

std::byte* ShmView::channel_base(int channel) const noexcept {
  assert(channel >= 0 && channel < kShmChannels);
  return base_ + Offsets(local_size_).channel(channel);
}

ShmFlags& ShmView::flags(int channel) const noexcept {
  return *reinterpret_cast<ShmFlags*>(channel_base(channel));
}

ProposalBoard& ShmView::proposals(int channel) const noexcept {
  return *reinterpret_cast<ProposalBoard*>(channel_base(channel) +
                                           Offsets(local_size_).in(channel).proposals);
}

std::byte* ShmView::small_slot(int channel, std::uint32_t sequence) const noexcept {
  return channel_base(channel) + Offsets(local_size_).in(channel).small +
         sequence % kShmSmallSlots * kShmSmallBytes;
}

ShmPlaces& ShmView::places(int channel, std::uint32_t index) const noexcept {
  assert(index < slots(channel));
  return reinterpret_cast<ShmPlaces*>(channel_base(channel) + ChannelOffsets::kPlaces)[index];
}

std::byte* ShmView::slot(int channel, std::uint32_t index) const noexcept {
  assert(index < slots(channel));
  return channel_base(channel) + Offsets(local_size_).in(channel).slots + index * kShmSlotBytes;
}

namespace {

enum : std::uint32_t { kNothing = 0, kWriting = 1, kComplete = 2 };

}  // namespace

void publish_cause(const ShmView& own, const Error& error) noexcept {
  CauseRecord& record = own.cause();
  std::uint32_t nothing = kNothing;
  if (!record.state.compare_exchange_strong(nothing, kWriting, std::memory_order_seq_cst)) return;
  std::string whole;
  std::string_view text = error.message;
  try {
    whole = error.what();
    text = whole;
  } catch (...) {  // out of memory: the plain message remains
  }
  text = utf8_prefix(text, CauseRecord::kTextBytes);
  const std::string_view tensor = utf8_prefix(error.tensor, CauseRecord::kTensorBytes);
  const std::size_t missing = std::min(error.missing.size(), CauseRecord::kMissing);
  record.code = static_cast<std::uint32_t>(error.code);
  record.peer = error.peer;
  record.waited_s = error.waited_s;
  record.text_bytes = static_cast<std::uint32_t>(text.size());
  record.tensor_bytes = static_cast<std::uint32_t>(tensor.size());
  record.missing_count = static_cast<std::uint32_t>(missing);
  std::copy_n(text.data(), text.size(), record.text.data());
  std::copy_n(tensor.data(), tensor.size(), record.tensor.data());
  std::copy_n(error.missing.begin(), missing, record.missing.begin());
  record.state.store(kComplete, std::memory_order_seq_cst);
}

std::optional<Error> read_cause(const ShmView& peer) {
  const CauseRecord& record = peer.cause();
  if (record.state.load(std::memory_order_seq_cst) != kComplete) return std::nullopt;
  Error error;
  const std::uint32_t code = read_once(record.code);
  error.code =
      code <= static_cast<std::uint32_t>(Code::Internal) ? static_cast<Code>(code) : Code::Internal;
  error.peer = read_once(record.peer);
  error.waited_s = read_once(record.waited_s);
  const auto at_most = [](const std::uint32_t& count, std::size_t most) {
    return std::min<std::size_t>(read_once(count), most);
  };
  error.message.assign(record.text.data(), at_most(record.text_bytes, CauseRecord::kTextBytes));
  error.tensor.assign(record.tensor.data(),
                      at_most(record.tensor_bytes, CauseRecord::kTensorBytes));
  const std::size_t missing = at_most(record.missing_count, CauseRecord::kMissing);
  error.missing.assign(record.missing.begin(),
                       record.missing.begin() + static_cast<std::ptrdiff_t>(missing));
  return error;
}

}  // namespace farandole

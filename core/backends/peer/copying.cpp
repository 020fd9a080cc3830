#include "backends/peer/copying.h"

#include <algorithm>
#include <utility>

#include "backends/buffers/spans.h"
#include "rounding.h"

namespace farandole {

namespace {

constexpr std::size_t kSlot = PeerBuffers::kSlotBytes;

}  // namespace

PeerCopying::PeerCopying(PeerBackend& backend, PeerPlan plan)
    : backend_(backend),
      device_(*backend.device()),
      plan_(std::move(plan)),
      chunks_(ceil_div(plan_.longest, kSlot)) {}

PeerCopying::~PeerCopying() {
  if (started_ && !over_) backend_.interrupted();
}

Result<void> PeerCopying::start() {
  started_ = true;
  for (const PeerPlan::Copy& copy : plan_.own) {
    if (copy.in.data() == copy.out) continue;
    auto copied =
        device_.context().copy(copy.out, copy.in.data(), copy.in.size(), device_.to_device());
    if (!copied) return copied;
  }
  if (chunks_ == 0) return {};
  return fill(0);
}

/// Copies a chunk of this member into its slot, which nobody reads.
Result<void> PeerCopying::fill(std::size_t chunk) {
  std::byte* to = backend_.buffers().own(chunk);
  Result<void> copied;
  bool any = false;
  for_each_part(plan_.in, chunk * kSlot, (chunk + 1) * kSlot, [&](std::span<const std::byte> part) {
    if (!copied) return;
    copied = device_.context().copy(to, part.data(), part.size(), device_.to_host());
    to += part.size();
    any = true;
  });
  if (!copied || !any) return copied;
  auto end = device_.context().point(device_.to_host());
  if (!end) return std::move(end).error();
  filled_ = std::move(*end);
  return {};
}

/// Copies what this member needs of a chunk, which all members have filled.
Result<void> PeerCopying::read(std::size_t chunk) {
  bool any = false;
  for (const PeerPlan::Source& source : plan_.from) {
    const std::size_t length = total_bytes(source.out);
    const std::size_t begin = std::max(source.begin, chunk * kSlot);
    const std::size_t end = std::min(source.begin + length, (chunk + 1) * kSlot);
    if (begin >= end) continue;
    const std::byte* from = backend_.buffers().of(source.member, chunk) + begin % kSlot;
    Result<void> copied;
    for_each_part(
        source.out, begin - source.begin, end - source.begin, [&](std::span<std::byte> part) {
          if (!copied) return;
          copied = device_.context().copy(part.data(), from, part.size(), device_.to_device());
          from += part.size();
        });
    if (!copied) return copied;
    any = true;
  }
  if (!any) return {};
  auto end = device_.context().point(device_.to_device());
  if (!end) return std::move(end).error();
  read_ = std::move(*end);
  return {};
}

Result<std::shared_ptr<const DevicePoint>> PeerCopying::unfinished() {
  for (auto* const point : {&filled_, &read_}) {
    if (*point == nullptr) continue;
    auto reached = (*point)->reached();
    if (!reached) return std::move(reached).error();
    if (!*reached) return *point;
    point->reset();
  }
  return std::shared_ptr<const DevicePoint>();
}

Result<Step> PeerCopying::step() {
  if (!started_) {
    if (auto started = start(); !started) return std::move(started).error();
  }
  if (chunks_ == 0) {
    over_ = true;
    return Step::Done;
  }
  if (!meeting_) {
    auto point = unfinished();
    if (!point) return std::move(point).error();
    if (*point != nullptr) return wait_.wait(device_, *point);
    wait_.reset();
    meeting_ = backend_.host().start(Barrier{});
    return Step::Advanced;
  }
  auto met = meeting_->step();
  if (!met || *met != Step::Done) return met;
  meeting_.reset();
  const std::size_t chunk = met_++;
  if (chunk == chunks_) {
    over_ = true;
    return Step::Done;
  }
  if (auto reading = read(chunk); !reading) return std::move(reading).error();
  if (chunk + 1 < chunks_) {
    if (auto filling = fill(chunk + 1); !filling) return std::move(filling).error();
  }
  return Step::Advanced;
}

}  // namespace farandole

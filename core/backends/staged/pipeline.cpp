#include "backends/staged/pipeline.h"

#include <cstring>
#include <utility>

namespace farandole {

StagedPipeline::StagedPipeline(EngineDevice* device, std::unique_ptr<StagedPlan> plan)
    : device_(device), plan_(std::move(plan)), chunks_(plan_->chunks()) {
  if (device_ != nullptr) return;
  host_memory_ = std::make_unique_for_overwrite<std::byte[]>(EngineDevice::kSlotBytes);
  own_slot_.memory = host_memory_.get();
}

Result<Step> StagedPipeline::step() {
  auto loaded = load();
  if (!loaded) return std::move(loaded).error();
  auto ran = run();
  if (!ran) return std::move(ran).error();
  if (loaded_ == chunks_ && under_way_.empty()) return Step::Done;
  if (*loaded || *ran) {
    wait_.reset();
    return Step::Advanced;
  }
  return blocked();
}

/// Waits for the peers, for bytes of the first chunk, or for the slot of the next one.
Result<Step> StagedPipeline::blocked() {
  std::shared_ptr<const DevicePoint> point;
  if (next_slot_ != nullptr) point = next_slot_->stored;
  if (!running_ && !under_way_.empty()) point = under_way_.front().ready;
  if (point == nullptr) {
    wait_.reset();
    return Step::Blocked;
  }
  if (!running_) return wait_.wait(*device_, point);
  wait_.not_alone();
  if (auto watched = wait_.watch(*device_, point); !watched) return std::move(watched).error();
  return Step::Blocked;
}

std::vector<Rank> StagedPipeline::waiting_for() const {
  return running_ ? running_->waiting_for() : std::vector<Rank>();
}

/// Starts to copy what there is room for.
Result<bool> StagedPipeline::load() {
  bool moved = false;
  const std::size_t most = device_ != nullptr ? EngineDevice::kSlots : 1;
  while (loaded_ < chunks_ && under_way_.size() < most) {
    if (next_slot_ == nullptr) {
      next_slot_ = device_ != nullptr ? &device_->slot(device_->next_slot()) : &own_slot_;
    }
    auto filled = load_next(*next_slot_);
    if (!filled) return filled;
    if (!*filled) break;
    next_slot_ = nullptr;
    moved = true;
  }
  return moved;
}

/// False: the device has not taken what the slot held before.
Result<bool> StagedPipeline::load_next(EngineDevice::Slot& slot) {
  if (slot.stored) {
    auto free = slot.stored->reached();
    if (!free) return free;
    if (!*free) return false;
    slot.stored.reset();
  }
  UnderWay next{.chunk = plan_->chunk(loaded_, slot.memory), .slot = &slot};
  if (next.chunk.at_once) {
    // There is nothing to wait for.
  } else if (device_ == nullptr) {
    for (const StagedCopy& copy : next.chunk.in) std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    for (const StagedCopy& copy : next.chunk.in) {
      auto copied = device_->context().copy(copy.to, copy.from, copy.bytes, device_->to_host());
      if (!copied) return std::move(copied).error();
    }
    auto ready = device_->context().point(device_->to_host());
    if (!ready) return std::move(ready).error();
    next.ready = std::move(*ready);
  }
  under_way_.push_back(std::move(next));
  ++loaded_;
  return true;
}

/// Goes on with the host's part of the first chunk.
Result<bool> StagedPipeline::run() {
  if (under_way_.empty()) return false;
  UnderWay& first = under_way_.front();
  if (first.ready) {
    auto ready = first.ready->reached();
    if (!ready) return ready;
    if (!*ready) return false;
    first.ready.reset();
  }
  if (!running_ && first.chunk.run) running_ = first.chunk.run();
  if (running_) {
    auto step = running_->step();
    if (!step) return std::move(step).error();
    if (*step == Step::Blocked) return false;
    if (*step == Step::Advanced) return true;
    running_.reset();
  }
  if (auto stored = store(first); !stored) return std::move(stored).error();
  under_way_.pop_front();
  return true;
}

/// Starts to copy the result of a chunk.
Result<void> StagedPipeline::store(UnderWay& stored) {
  bool by_device = false;
  for (const StagedCopy& copy : stored.chunk.out) {
    if (copy.by_host || device_ == nullptr) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      continue;
    }
    auto copied = device_->context().copy(copy.to, copy.from, copy.bytes, device_->to_device());
    if (!copied) return copied;
    by_device = true;
  }
  if (!by_device) return {};
  auto end = device_->context().point(device_->to_device());
  if (!end) return std::move(end).error();
  stored.slot->stored = std::move(*end);
  return {};
}

}  // namespace farandole

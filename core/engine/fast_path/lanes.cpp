#include "engine/fast_path/lanes.h"

#include <algorithm>

namespace farandole {

void Lanes::open(const ProcessSet& set, bool added) {
  auto proposals =
      peers_.open_proposals(set.members.to_vector(), set.channel, set.generation, added);
  if (proposals == nullptr) return;
  const std::string_view path = proposals->size() == 1 ? "local"
                                : proposals->remote()  ? "tcp.fast"
                                                       : "shm.fast";
  lanes_.push_back(std::make_unique<Lane>(
      Lane{.set = set, .proposals = std::move(proposals), .run = &runs_[path], .ready = !added}));
  linked();
  count_.store(lanes_.size(), std::memory_order_relaxed);
}

void Lanes::ready(std::int32_t process_set) noexcept {
  for (const auto& lane : lanes_) {
    if (lane->set.id == process_set) lane->ready = true;
  }
}

void Lanes::linked() noexcept {
  for (const auto& lane : lanes_) lane->linked = lane->proposals->linked();
}

void Lanes::remove(std::int32_t process_set) {
  std::erase_if(lanes_, [&](const auto& lane) { return lane->set.id == process_set; });
  count_.store(lanes_.size(), std::memory_order_relaxed);
}

Lane* Lanes::find(std::int32_t process_set) const noexcept {
  const auto found = std::ranges::find_if(lanes_, [&](const auto& lane) {
    return lane->set.id == process_set && lane->ready && lane->linked;
  });
  return found == lanes_.end() ? nullptr : found->get();
}

Lane* Lanes::of_generation(std::uint32_t generation) const noexcept {
  const auto found = std::ranges::find_if(
      lanes_, [&](const auto& lane) { return lane->set.generation == generation; });
  return found == lanes_.end() ? nullptr : found->get();
}

void Lanes::close() noexcept {
  for (const auto& lane : lanes_) {
    if (lane->proposals->closed()) continue;
    if (lane->set.id != 0 && !lane->proposals->remote()) ++lane->unused;
    lane->proposals->close();
  }
}

void Lanes::reopen() noexcept {
  for (const auto& lane : lanes_) {
    if (lane->ready && lane->unused <= kMostUnused) lane->proposals->reopen();
  }
}

bool Lanes::answer() noexcept {
  bool any = false;
  for (const auto& lane : lanes_) {
    if (!lane->proposals->asked()) continue;
    lane->proposals->answer();
    any = any || !lane->proposals->asked();
  }
  return any;
}

bool Lanes::asked() const noexcept {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->proposals->asked(); });
}

}  // namespace farandole

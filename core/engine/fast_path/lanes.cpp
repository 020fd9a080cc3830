#include "engine/fast_path/lanes.h"

#include <algorithm>

namespace rueda {

void Lanes::open(std::int32_t process_set, std::uint32_t generation, std::span<const Rank> ranks,
                 bool added) {
  auto proposals = peers_.open_proposals(ranks, process_set, generation, added);
  if (proposals == nullptr) return;
  const std::string_view path = ranks.size() == 1     ? "local"
                                : proposals->remote() ? "tcp.fast"
                                                      : "shm.fast";
  lanes_.push_back(std::make_unique<Lane>(Lane{.process_set = process_set,
                                               .generation = generation,
                                               .proposals = std::move(proposals),
                                               .run = &runs_[path],
                                               .ready = !added}));
  count_.store(lanes_.size(), std::memory_order_relaxed);
}

void Lanes::ready(std::int32_t process_set) noexcept {
  for (const auto& lane : lanes_) {
    if (lane->process_set == process_set) lane->ready = true;
  }
}

void Lanes::remove(std::int32_t process_set) {
  const auto found = std::ranges::find_if(
      lanes_, [&](const auto& lane) { return lane->process_set == process_set; });
  if (found == lanes_.end()) return;
  removed_.push_back(std::move(*found));
  lanes_.erase(found);
  count_.store(lanes_.size(), std::memory_order_relaxed);
  sweep();
}

void Lanes::sweep() {
  std::erase_if(removed_, [](const auto& lane) { return !lane->proposals->read_by_links(); });
}

Lane* Lanes::find(std::int32_t process_set) const noexcept {
  const auto found = std::ranges::find_if(
      lanes_, [&](const auto& lane) { return lane->process_set == process_set && lane->ready; });
  return found == lanes_.end() ? nullptr : found->get();
}

Lane* Lanes::of_generation(std::uint32_t generation) const noexcept {
  const auto found = std::ranges::find_if(
      lanes_, [&](const auto& lane) { return lane->generation == generation; });
  return found == lanes_.end() ? nullptr : found->get();
}

void Lanes::close() noexcept {
  for (const auto& lane : lanes_) {
    if (lane->proposals->closed()) continue;
    if (lane->process_set != 0) ++lane->unused;
    lane->proposals->close();
  }
}

void Lanes::reopen() noexcept {
  for (const auto& lane : lanes_) {
    if (lane->ready && lane->unused <= kMostUnused) lane->proposals->reopen();
  }
}

bool Lanes::answer() noexcept {
  for (const auto& lane : lanes_) {
    if (lane->proposals->asked()) lane->proposals->answer();
  }
  return !asked();
}

bool Lanes::asked() const noexcept {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->proposals->asked(); });
}

bool Lanes::sending() const noexcept {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->proposals->sending(); });
}

}  // namespace rueda

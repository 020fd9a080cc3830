/// A node of the control tree: every rank but rank 0. Collects reports on their way up and merges
/// equal ones. A rank without children passes its own reports on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/control/collector.h"
#include "engine/control/negotiator.h"

namespace farandole {

/// Equal reports of a whole subtree go up as one. They go up rank by rank if two of them differ, if
/// a rank below has joined, or if they have waited too long for the rest: then the coordinator has
/// to know which rank reported what.
class TreeNode final : public Collector {
 public:
  /// `patience`: how long reports wait for the rest of the subtree; zero: without limit.
  TreeNode(const World& world, ResponseCache& cache, Duration patience);

  Result<void> report(const Report& report, TimePoint now) override;
  Result<void> join(Rank rank, TimePoint now) override;
  void leave(const wire::Departure& who) override { up().leave(who); }
  void blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name,
               TimePoint now) override;
  void unblocked(Rank rank, TimePoint) override { up().unblocked(rank); }
  void settle(KeyState& key_state) override;
  void all_joined() override { joined_.clear(); }
  void set_removed(const ProcessSet&, std::span<KeyState* const>, TimePoint) override {}

  void tick(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_tick() const;
  /// Sends the reports that are due to the parent, as one message.
  void flush(std::uint64_t position, Effects& effects);

 protected:
  void all_acknowledged() override { up().acknowledge(); }

 private:
  [[nodiscard]] wire::Writer up() { return wire::Writer(message_); }
  void pass_on(KeyState& key_state, const CanonicalSignaturePtr& canonical, std::string_view group,
               std::uint8_t size_class, bool whole);
  void pass_on_apart(KeyState& key_state, const CanonicalSignaturePtr& canonical,
                     std::string_view group, std::uint8_t size_class, const RankSet& who,
                     Duration age);
  void take_apart(KeyState& key_state, TimePoint now);

  const Duration patience_;
  const bool leaf_;
  RankSet joined_;
  OpenKeys open_;  // tallies that wait for the rest of the subtree
  std::vector<std::byte> message_;
  Rank origin_ = -1;  // the rank of the last Origin record in message_
  std::uint32_t age_ms_ = 0;
  std::uint64_t forgotten_ = 0;  // value of ResponseCache::forgotten() at the last message
};

}  // namespace farandole

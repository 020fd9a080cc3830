/// How the negotiation is set up.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "types.h"

namespace farandole {

struct NegotiatorOptions {
  std::size_t fusion_threshold_bytes = std::size_t{128} << 20;  ///< 0: no fusion
  /// Submissions that nobody waits for are reported when they reach this …
  std::size_t batch_bytes = std::size_t{1} << 20;
  Duration cycle = std::chrono::milliseconds(1);      ///< … or this long after the first of them
  Duration stall_warning = std::chrono::seconds(60);  ///< zero: off
  Duration stall_shutdown = Duration::zero();         ///< zero: never
  /// A proven deadlock ends the world after this time. Zero: never. None: after the time of the
  /// warning.
  std::optional<Duration> deadlock;
  bool disable_group_fusion = false;
  /// Capacity of the response cache, in keys and in signatures; the coordinator's applies to all
  /// ranks. 0: no cache.
  std::size_t key_capacity = 16384;
  /// Process sets that exist from the start, numbered from 1 in this order; valid, see
  /// World::check_addition().
  std::vector<std::vector<Rank>> process_sets;

  /// After 1 / kSaySo of that limit a rank reports that it is blocked.
  static constexpr int kSaySo = 12;

  [[nodiscard]] Duration deadlock_limit() const {
    if (deadlock) return *deadlock;
    // Who switches the check for late ranks off has not asked to hang in a proven deadlock.
    return stall_warning > Duration::zero() ? stall_warning : std::chrono::seconds(60);
  }

  /// See EngineOptions.
  template <class Visitor>
  void each(Visitor& visit) {
    visit("fusion_threshold_bytes", fusion_threshold_bytes);
    visit("cycle_time_s", cycle);
    visit("cache_capacity", key_capacity);
    visit("stall_warning_s", stall_warning);
    visit("stall_shutdown_s", stall_shutdown);
    visit("disable_group_fusion", disable_group_fusion);
    visit("process_sets", process_sets);
  }
};

}  // namespace farandole

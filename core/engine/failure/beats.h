/// Signs of life: this rank's own, and those of the ranks that it watches.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/phase.h"
#include "engine/control/peers.h"
#include "engine/failure/heartbeat.h"
#include "engine/failure/losses.h"

namespace rueda {

/// Holder of the baton only, except for pulse().
class Beats {
 public:
  Beats(HeartbeatOptions options, Peers& peers, const Phase& phase, const Log& log, Losses& losses)
      : options_(options), peers_(peers), phase_(phase), log_(log), losses_(losses) {}

  /// All are alive now. Nobody is watched in a world of one, or without a limit.
  void start(TimePoint now);
  /// This process runs, though look() may not be called for a while. Any thread.
  void pulse() noexcept;
  /// Whatever a neighbour says is a sign of life.
  void heard(Rank from, TimePoint now);
  /// A neighbour has said no more than that.
  void answer(TimePoint now);
  /// When look() has something to do; none: nobody is watched.
  [[nodiscard]] std::optional<TimePoint> next() const;
  void look(TimePoint now);

 private:
  void beat(TimePoint now);
  void report(const Heartbeat::Report& report, TimePoint now);

  HeartbeatOptions options_;
  Peers& peers_;
  const Phase& phase_;
  const Log& log_;
  Losses& losses_;
  std::optional<Heartbeat> heartbeat_;  // none: nobody is watched
  std::vector<Peers::Watched> watched_;
  std::atomic<std::int64_t> ran_ns_{0};  // this process has run without a long gap until then
};

}  // namespace rueda

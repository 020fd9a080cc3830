/// Sends this rank's heartbeats, and watches those of other ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/phase.h"
#include "engine/control/peers.h"
#include "engine/failure/failure_sink.h"
#include "engine/failure/heartbeat.h"

namespace farandole {

/// Used by the holder of the progress lock only, except for pulse().
class Beats {
 public:
  Beats(HeartbeatOptions options, Peers& peers, const Phase& phase, const Log& log,
        FailureSink& failures)
      : options_(options), peers_(peers), phase_(phase), log_(log), failures_(failures) {}

  /// Begins to watch: all ranks count as alive now. Nobody is watched in a world of one, or without
  /// a time limit.
  void start(TimePoint now);
  /// Notes that this process runs, although look() may not be called for a while. Any thread.
  void pulse() noexcept;
  /// A message came from `from`: whatever it says, it counts as a heartbeat.
  void heard(Rank from, TimePoint now);
  /// A message came that is only a heartbeat.
  void answer(TimePoint now);
  /// When look() is due; none: nobody is watched.
  [[nodiscard]] std::optional<TimePoint> next() const;
  void look(TimePoint now);

 private:
  void beat(TimePoint now);
  void report(const Heartbeat::Report& report, TimePoint now);

  HeartbeatOptions options_;
  Peers& peers_;
  const Phase& phase_;
  const Log& log_;
  FailureSink& failures_;
  std::optional<Heartbeat> heartbeat_;  // none: nobody is watched
  std::vector<Peers::Watched> watched_;
  std::atomic<std::int64_t> ran_ns_{0};  // when this process was last known to run
};

}  // namespace farandole

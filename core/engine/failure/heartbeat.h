/// Heartbeats: which ranks are alive, and when this rank's own heartbeat is due. Heartbeat decides,
/// Beats sends and listens.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/phase.h"
#include "engine/control/peers.h"
#include "engine/failure/cause.h"
#include "types.h"

namespace farandole {

/// The heartbeat between neighbours in the control tree: a message of this byte. No message of the
/// negotiator begins with it.
inline constexpr std::byte kBeatFrame{0xC1};

struct HeartbeatOptions {
  Duration warning = std::chrono::seconds(3);  ///< a rank silent for so long is suspected
  /// A rank silent for so long is lost; zero: no heartbeats.
  Duration limit = std::chrono::seconds(5);

  /// The interval between heartbeats: short enough that a rank survives a pause that ends a second
  /// before the limit.
  [[nodiscard]] constexpr Duration interval() const noexcept {
    constexpr Duration kLongest = std::chrono::seconds(1);
    return limit > Duration::zero() && limit / 10 < kLongest ? limit / 10 : kLongest;
  }

  /// See EngineOptions.
  template <class Visitor>
  void each(Visitor& visit) {
    visit("heartbeat_warning_s", warning);
    visit("heartbeat_timeout_s", limit);
  }
};

/// A pure state machine: heartbeats and the time come in by calls. It has no thread, clock or
/// socket. A process that was paused (stopped, in a debugger, its machine asleep) could not receive
/// heartbeats, so the silence of others counts only while this process ran.
class Heartbeat {
 public:
  /// `peers`: how many ranks are watched; all of them are alive `now`. The first heartbeat is due
  /// at once.
  Heartbeat(const HeartbeatOptions& options, std::size_t peers, TimePoint now);

  /// That peer was alive at `when`.
  void heard(std::size_t peer, TimePoint when) noexcept;
  /// A heartbeat came. If this rank's own is due soon it is sent now, so that two ranks wake each
  /// other once in an interval, not twice.
  void answer(TimePoint now) noexcept;

  /// When look() is due. Valid until the next call.
  [[nodiscard]] TimePoint next() const noexcept { return next_; }

  struct Lost {
    std::size_t peer;
    Duration silence;
  };
  struct Report {
    bool beat = false;                   ///< this rank's own heartbeat is due
    std::vector<std::size_t> suspected;  ///< suspected for the first time in this look
    std::vector<std::size_t> returned;   ///< no longer suspected: they were heard since
    std::optional<Lost>
        lost;  ///< silent for too long; if several are, the one that has been silent longest
    Duration pause{};  ///< how long this process was paused, if longer than the warning
  };
  /// `ran`: when this process last ran for certain, although look() was not called.
  [[nodiscard]] Report look(TimePoint now, TimePoint ran);

  /// How many peers are silent for longer than the warning, as of the last look.
  [[nodiscard]] std::size_t silent() const noexcept;

 private:
  struct Peer {
    TimePoint heard;
    bool suspected = false;
  };

  HeartbeatOptions options_;
  std::vector<Peer> peers_;
  TimePoint looked_;
  TimePoint beat_at_;
  TimePoint next_;
};

/// Sends this rank's heartbeats, and watches those of other ranks. Used by the holder of the
/// progress lock only, except for pulse().
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

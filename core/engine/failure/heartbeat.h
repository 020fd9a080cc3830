/// Who is alive, as told by signs of life, and when to give one.
///
/// A pure state machine: what was heard and the time come in by calls. No thread, no clock, no
/// socket. A process that did not run for a while (stopped, debugged, its machine asleep) has heard
/// nobody, and that is not the others' fault: silence counts only while this process ran.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "types.h"

namespace rueda {

/// The message between neighbours of the control tree that says nothing but "I am alive". No
/// message of the negotiator begins with this byte.
inline constexpr std::byte kBeatFrame{0xC1};

struct HeartbeatOptions {
  Duration interval = std::chrono::seconds(1);
  Duration warning = std::chrono::seconds(3);  ///< silent for so long: suspected
  Duration limit = std::chrono::seconds(5);    ///< silent for so long: lost; zero: no heartbeats
};

/// How often to beat, so that a pause that ends a second before the limit is survived.
[[nodiscard]] constexpr Duration beat_interval(Duration limit) noexcept {
  constexpr Duration kLongest = std::chrono::seconds(1);
  return limit > Duration::zero() && limit / 10 < kLongest ? limit / 10 : kLongest;
}

class Heartbeat {
 public:
  /// `peers`: how many are watched; all of them were alive `now`. The first beat is due at once.
  Heartbeat(const HeartbeatOptions& options, std::size_t peers, TimePoint now);

  /// That peer was alive then.
  void heard(std::size_t peer, TimePoint when) noexcept;
  /// A beat came. If the own one is due soon it goes now: two ranks that beat at the same moment
  /// wake each other once in an interval, not twice.
  void answer(TimePoint now) noexcept;

  /// When look() has something to do. Until the next call.
  [[nodiscard]] TimePoint next() const noexcept { return next_; }

  struct Lost {
    std::size_t peer;
    Duration silence;
  };
  struct Report {
    bool beat = false;                   ///< it is time for a sign of life of this rank's own
    std::vector<std::size_t> suspected;  ///< since this look
    std::vector<std::size_t> returned;   ///< suspected before, and heard since
    std::optional<Lost> lost;            ///< silent for too long; the one that was heard first
    Duration pause{};                    ///< for how long this process did not run, if it is long
  };
  /// `ran`: when this process is known to have run last, though nobody looked.
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

}  // namespace rueda

/// Finds out whether an operation without progress is stuck, or only waits for ranks that are still
/// at something else.
///
/// Process sets overlap: a member that is awaited may work through another set first, for as long
/// as that takes. So whoever has seen no progress for the whole time limit asks the ranks that it
/// waits for how far they are, and goes on to those that these wait for, in whatever operation. It
/// is stuck if none of them has made any progress for the time limit: then nothing will come of
/// waiting. As long as one of them moves there is hope, and it is asked again later.
///
/// That always comes to an end: operations have one order, so whoever moves before it has come to
/// this one comes closer. Who moves on beyond it does not count as moving.
///
/// A pure state machine: answers and time come in by calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/execution/position.h"
#include "types.h"

namespace rueda {

class Survey {
 public:
  /// `limit`: without progress for so long is stuck.
  explicit Survey(Duration limit) noexcept : limit_(limit) {}

  /// How many ranks are asked at a time.
  static constexpr std::size_t kAtATime = 64;
  /// How many ranks an answer names at most.
  static constexpr std::size_t kMostNamed = 512;

  /// About this operation from now on. `self` has waited for `awaited` without progress.
  void begin(Position position, Rank self, const std::vector<Rank>& awaited);
  [[nodiscard]] bool open() const noexcept { return open_; }
  [[nodiscard]] const Position& position() const noexcept { return position_; }
  void close() noexcept { open_ = false; }

  /// Those that have to be asked now.
  [[nodiscard]] std::vector<Rank> take_questions();
  void hear(Rank from, Standing standing, TimePoint now);
  /// Everybody has answered, or somebody moves.
  [[nodiscard]] bool complete() const noexcept {
    return open_ && (moving_ || heard_ == ranks_.size());
  }

  struct Finding {
    bool stuck = false;
    Duration wait{};  ///< not stuck: when it is worth to ask again
    /// Stuck: who is to be looked at. Two that wait for each other, or those that are awaited and
    /// wait for nobody themselves.
    std::vector<Rank> ranks;
    bool each_other = false;
    bool silent = false;  ///< they have not answered
  };
  /// With the answers that are there. Who has not answered is stuck.
  [[nodiscard]] Finding conclude(TimePoint now) const;

 private:
  struct Asked {
    bool answered = false;
    Standing standing;
    TimePoint since;  // of its last progress
  };
  void ask(const std::vector<Rank>& ranks);

  Duration limit_;
  bool open_ = false;
  Position position_;
  Rank self_ = -1;
  std::vector<Rank> awaited_;
  std::map<Rank, Asked> ranks_;
  std::map<Rank, TimePoint> past_;  // since when a rank is known to be past position_
  std::vector<Rank> unasked_;
  std::size_t asked_ = 0;
  std::size_t heard_ = 0;
  bool moving_ = false;
};

}  // namespace rueda

/// Finds out whether an operation without progress is stuck, or only waits for ranks that are still
/// busy with other operations.
///
/// Process sets overlap: a member may have operations of another set to run first, and these may
/// take long. So a rank that has seen no progress for the whole time limit asks the ranks that it
/// waits for how far they are, then the ranks that those wait for, in whatever operation. The
/// operation is stuck if none of them has made progress for the time limit. As long as one of them
/// does, the rank waits and asks again later.
///
/// This ends: all operations have one order, so a rank that makes progress before this operation
/// comes closer to it. Progress beyond this operation does not count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/failure/cause.h"
#include "types.h"

namespace farandole {

/// Decides what the answers mean. A pure state machine: answers and time come in by calls.
class Survey {
 public:
  /// `limit`: a rank without progress for so long counts as stuck.
  explicit Survey(Duration limit) noexcept : limit_(limit) {}

  /// How many ranks are asked at a time.
  static constexpr std::size_t kAtATime = 64;
  /// How many ranks an answer names at most.
  static constexpr std::size_t kMostNamed = 512;

  /// Begins a survey about the operation at `position`. `self` waits there for `awaited`.
  void begin(Position position, Rank self, const std::vector<Rank>& awaited);
  [[nodiscard]] bool open() const noexcept { return open_; }
  [[nodiscard]] const Position& position() const noexcept { return position_; }
  void close() noexcept { open_ = false; }

  /// The ranks that have to be asked now.
  [[nodiscard]] std::vector<Rank> take_questions();
  void hear(Rank from, Standing standing, TimePoint now);
  /// True if all ranks have answered, or if one of them makes progress.
  [[nodiscard]] bool complete() const noexcept {
    return open_ && (moving_ || heard_ == ranks_.size());
  }

  struct Finding {
    bool stuck = false;
    Duration wait{};  ///< not stuck: how long to wait before the next survey
    /// Stuck: the ranks to look at. Two that wait for each other, or those that others wait for and
    /// that wait for nobody.
    std::vector<Rank> ranks;
    bool each_other = false;
    bool silent = false;  ///< they have not answered
  };
  /// The result from the answers so far. A rank that has not answered counts as stuck.
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
  std::map<Rank, TimePoint> past_;  // since when a rank has been known to be beyond position_
  std::vector<Rank> unasked_;
  std::size_t asked_ = 0;
  std::size_t heard_ = 0;
  bool moving_ = false;
};

/// First byte of a question or an answer; no other message begins with it. They travel along the
/// control tree, from neighbour to neighbour.
inline constexpr std::byte kSurveyFrame{0xC5};

/// An answer if there is a standing, else a question.
struct SurveyMessage {
  Rank from = -1;
  Rank to = -1;
  Position position;
  std::optional<Standing> standing = std::nullopt;
};

[[nodiscard]] std::vector<std::byte> encode_survey(const SurveyMessage& message);
/// Nothing if the bytes are no such frame.
[[nodiscard]] std::optional<SurveyMessage> decode_survey(std::span<const std::byte> frame);

/// Asks other ranks about an operation that makes no progress on this rank. Used by the holder of
/// the progress lock only.
class SurveyRunner {
 public:
  /// `limit`: an operation without progress for so long may be stuck.
  SurveyRunner(Duration limit, Peers& peers, Dispatcher& dispatcher, FailureSink& failures);

  /// The running operation has made no progress for its time limit.
  void begin(TimePoint now);
  /// Takes a message if it is a question or an answer of a survey; else returns false.
  bool take(std::span<const std::byte> frame, TimePoint now);

 private:
  void ask(TimePoint now);
  void conclude(TimePoint now);
  void carry(const SurveyMessage& message, TimePoint now);

  Duration limit_;
  Peers& peers_;
  Dispatcher& dispatcher_;
  FailureSink& failures_;
  std::optional<Rank> parent_;  // in the control tree
  Survey survey_;
};

}  // namespace farandole

/// The fast path: operations that ranks agree on by themselves, without asking the coordinator. Of
/// small ones what is said and the data go together; a large one starts once all have proposed it.
/// For what all of them have negotiated before and somebody waits for, and only while they have
/// nothing else under way; all else takes the regular way.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/phase.h"
#include "engine/base/progress.h"
#include "engine/base/spin_wait.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/execution/submissions.h"
#include "engine/failure/detector.h"
#include "engine/fast_path/contributions.h"
#include "engine/fast_path/lanes.h"
#include "engine/timeline/timeline.h"
#include "transport/little_endian.h"

namespace farandole {

/// First byte of the message by which somebody who waits for others' proposals calls on them; see
/// transport/proposals.h. It goes to all ranks along the control tree; no other message begins
/// with this byte.
inline constexpr std::byte kAskFrame{0xC4};

using AskFrame = std::array<std::byte, 9>;

/// In which round, and of which process set: 0 for the world.
struct Ask {
  std::uint32_t generation = 0;
  std::uint32_t round = 0;
};

[[nodiscard]] inline AskFrame encode_ask(const Ask& ask) {
  AskFrame frame{kAskFrame};
  store_little_endian(frame.data() + 1, ask.round);
  store_little_endian(frame.data() + 5, ask.generation);
  return frame;
}

/// Nothing if the bytes are not a call.
[[nodiscard]] inline std::optional<Ask> decode_ask(std::span<const std::byte> frame) {
  if (frame.size() != sizeof(AskFrame) || frame.front() != kAskFrame) return std::nullopt;
  return Ask{.generation = load_little_endian<std::uint32_t>(frame.data() + 5),
             .round = load_little_endian<std::uint32_t>(frame.data() + 1)};
}

/// There is one unless a backend in Python must see every operation. A set whose members cannot see
/// each other's proposals has no lane in it, and takes the regular way.
class FastPath final : public FastPathGate {
 public:
  /// What it works with; all of it outlives this.
  struct Parts {
    Peers& peers;
    const Phase& phase;
    const Timeline& timeline;
    Negotiation& negotiation;
    Submissions& submissions;
    Handles& handles;
    Dispatcher& dispatcher;
    FailureDetector& detector;
    Progress& progress;
  };
  explicit FastPath(const Parts& parts) : parts_(parts), lanes_(parts.peers) {}

  /// Adds what was proposed and agreed. Any thread.
  void count(std::map<std::string, PathCount, std::less<>>& paths) const
      FARANDOLE_EXCLUDES(engine_lock);

  /// No set has a lane.
  [[nodiscard]] bool idle() const noexcept { return lanes_.empty(); }

  // By the holder of the progress lock; take the engine lock.

  /// Opens the lane of a set of which this rank is a member. `added`: while others run, and it may
  /// be used once the addition is done.
  void open(const SetChange& set, bool added) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);
  /// Connections have come.
  void linked() FARANDOLE_REQUIRES(progress_lock) FARANDOLE_EXCLUDES(engine_lock);
  /// That set has been added or removed on this rank.
  void changed(const SetChange& change) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);
  /// Proposes it if all members may agree on it. False: it has to go the regular way.
  [[nodiscard]] bool propose(Submission& submission) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);
  /// After a proposal, which the caller has just made; goes on to wait for its end if it `stays`.
  /// 0: done; else the handle of an operation that is under way.
  Result<Handle> see_through(bool stays) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);
  /// Settles the own proposal if it can be, and answers to those who ask. True: something came of
  /// it.
  bool step(TimePoint now) FARANDOLE_REQUIRES(progress_lock) FARANDOLE_EXCLUDES(engine_lock);
  /// A message of a neighbour. True if it was for the fast path: somebody has waited for long.
  [[nodiscard]] bool take(std::span<const std::byte> frame, Rank from, TimePoint now)
      FARANDOLE_REQUIRES(progress_lock) FARANDOLE_EXCLUDES(engine_lock);

  // By the holder of the progress lock, with the engine lock held or not.

  /// An own proposal has no outcome yet. It begins and ends with both locks held, so either is
  /// enough to look.
  [[nodiscard]] bool open() const noexcept override FARANDOLE_NO_THREAD_SAFETY_ANALYSIS {
    return lane_ != nullptr && lane_->proposals->open();
  }
  [[nodiscard]] bool busy() const noexcept FARANDOLE_REQUIRES(progress_lock) {
    return open() || parts_.peers.notes().sending();
  }
  /// Something decided waits for the outcome on the own proposal.
  [[nodiscard]] bool holds() const noexcept FARANDOLE_REQUIRES(progress_lock) {
    return !held_.empty();
  }
  /// When step() has something to do though nothing arrives. Time zero: never.
  [[nodiscard]] TimePoint next() const noexcept FARANDOLE_REQUIRES(progress_lock) {
    return open() ? proposed_.ask_at : TimePoint{};
  }

  // By the holder of the progress lock, with the engine lock held.

  /// While an own proposal is open, what is decided meanwhile waits: the others may agree on the
  /// proposal at the position where it was made, so everything later comes after it. Whoever is
  /// behind is asked at once, as others may wait for this rank in what is held.
  void hold(Effects& decided, TimePoint now) FARANDOLE_REQUIRES(progress_lock, engine_lock);
  /// The world has failed; entries of what is held fail with it.
  void fail(const Error& error) FARANDOLE_REQUIRES(progress_lock, engine_lock);

  /// Full name of what is proposed to that rank, among others; empty: nothing is.
  [[nodiscard]] std::string proposed_to(Rank rank) const
      FARANDOLE_REQUIRES(progress_lock, engine_lock);

  // Any thread, with the engine lock held.

  void close() override FARANDOLE_REQUIRES(engine_lock) { lanes_.close(); }
  void reopen() override FARANDOLE_REQUIRES(engine_lock) {
    if (!parts_.timeline.recording()) lanes_.reopen();
  }
  /// Either lock is enough, as for open().
  [[nodiscard]] bool has_proposed(const Key& key) const override
      FARANDOLE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  /// An operation that this rank has proposed to all other members of a set.
  struct Proposed {
    enum class End : std::uint8_t { None, Agreed, Moved, Failed };
    Key key;                           // kept between calls for its memory
    Submission* submission = nullptr;  // of the caller, who stands still; or `kept`
    Submission kept;
    std::shared_ptr<Work> work;  // null while the caller stands still
    Handle handle = 0;
    Handle handed = 0;  // of results that the caller, who stands still, takes in a moment
    std::uint32_t round = 0;
    // Of the key; null: unnamed. Where the key has been evicted meanwhile nobody reads the count.
    std::uint64_t* exchanges = nullptr;
    TimePoint ask_at{};  // time zero: not any more
    End end = End::None;
    Error error;  // if it failed
  };
  [[nodiscard]] bool may_propose(const Submission& submission) const
      FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void name(const Submission& submission, const ProcessSet& set)
      FARANDOLE_REQUIRES(progress_lock, engine_lock);
  [[nodiscard]] bool spell(const Submission& submission, const ProcessSet& set, Proposals::Tag& tag,
                           std::uint32_t* said) FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void await(bool stays) FARANDOLE_REQUIRES(progress_lock);
  void leave() FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void settle(bool agreed) FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void end(Proposed::End end, Error error) FARANDOLE_REQUIRES(progress_lock, engine_lock);
  [[nodiscard]] std::shared_ptr<Work> make_work(Submission& submission) const
      FARANDOLE_REQUIRES(progress_lock);
  Result<void> take_results() FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void start(Submissions::Draft& draft) FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void release_held() FARANDOLE_REQUIRES(progress_lock, engine_lock);
  bool move(TimePoint now) FARANDOLE_REQUIRES(progress_lock);
  void pass_on_ask(const Ask& ask, Rank from, TimePoint now) FARANDOLE_REQUIRES(progress_lock);

  Parts parts_;

  Lanes lanes_;
  // Changed by the holder of the progress lock only, with the engine lock held where others read
  // it.
  /// Of the last proposal; it is there while that is open.
  Lane* lane_ FARANDOLE_GUARDED_BY(progress_lock) = nullptr;
  Proposed proposed_ FARANDOLE_GUARDED_BY(progress_lock);
  Contributions contributions_ FARANDOLE_GUARDED_BY(progress_lock);
  /// What has been decided behind an own proposal that is open.
  Decided held_ FARANDOLE_GUARDED_BY(progress_lock);
  Pauses pauses_ FARANDOLE_GUARDED_BY(progress_lock);  // before the first yield of a wait
};

}  // namespace farandole

/// The fast path: operations that ranks agree on by themselves, without asking the coordinator. Of
/// small ones what is said and the data go together; a large one starts once all have proposed it.
/// For what all of them have negotiated before and somebody waits for, and only while they have
/// nothing else under way; all else takes the regular way.
#pragma once

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
#include "engine/control/fast_path_gate.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/execution/submissions.h"
#include "engine/failure/detector.h"
#include "engine/fast_path/ask_frame.h"
#include "engine/fast_path/contributions.h"
#include "engine/fast_path/lanes.h"
#include "engine/timeline/timeline.h"

namespace farandole {

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
    Dispatcher& dispatcher;
    FailureDetector& detector;
    Progress& progress;
  };
  explicit FastPath(const Parts& parts) : parts_(parts), lanes_(parts.peers) {}

  /// Adds what was proposed and agreed. Any thread; takes the engine lock.
  void count(std::map<std::string, PathCount, std::less<>>& paths) const;

  /// No set has a lane.
  [[nodiscard]] bool idle() const noexcept { return lanes_.empty(); }

  // By the holder of the progress lock; takes the engine lock.

  /// Opens the lane of a set of which this rank is a member. `added`: while others run, and it may
  /// be used once the addition is done.
  void open(const SetChange& set, bool added);
  /// Connections have come.
  void linked();
  /// That set has been added or removed on this rank.
  void changed(const SetChange& change);
  /// Proposes it if all members may agree on it. False: it has to go the regular way.
  [[nodiscard]] bool propose(Submission& submission);
  /// After a proposal, which the caller has just made; goes on to wait for its end if it `stays`.
  /// 0: done; else the handle of an operation that is under way.
  Result<Handle> see_through(bool stays);
  /// Settles the own proposal if it can be, and answers to those who ask. True: something came of
  /// it.
  bool step(TimePoint now);
  /// A message of a neighbour. True if it was for the fast path: somebody has waited for long.
  [[nodiscard]] bool take(std::span<const std::byte> frame, Rank from, TimePoint now);

  // By the holder of the progress lock; takes no other lock.

  /// An own proposal has no outcome yet.
  [[nodiscard]] bool open() const noexcept override {
    return lane_ != nullptr && lane_->proposals->open();
  }
  [[nodiscard]] bool busy() const noexcept { return open() || parts_.peers.notes().sending(); }
  /// Something decided waits for the outcome on the own proposal.
  [[nodiscard]] bool holds() const noexcept { return !held_.empty(); }
  /// When step() has something to do though nothing arrives. Time zero: never.
  [[nodiscard]] TimePoint next() const noexcept { return open() ? proposed_.ask_at : TimePoint{}; }

  // By the holder of the progress lock, with the engine lock held.

  /// While an own proposal is open, what is decided meanwhile
  /// waits: the others may agree on the proposal at the position where it was made, so everything
  /// later comes after it. Whoever is behind is asked at once, as others may wait for this rank in
  /// what is held.
  void hold(Effects& decided, TimePoint now);
  /// The world has failed; entries of what is held fail with it.
  void fail(const Error& error);

  /// Full name of what is proposed to that rank, among others; empty: nothing is.
  [[nodiscard]] std::string proposed_to(Rank rank) const;

  // Any thread, with the engine lock held.

  void close() override { lanes_.close(); }
  void reopen() override {
    if (!parts_.timeline.recording()) lanes_.reopen();
  }
  [[nodiscard]] bool has_proposed(const Key& key) const override;

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
  [[nodiscard]] bool may_propose(const Submission& submission) const;
  void name(const Submission& submission, const ProcessSet& set);
  [[nodiscard]] bool spell(const Submission& submission, const ProcessSet& set, Proposals::Tag& tag,
                           std::uint32_t* said);
  void await(bool stays);
  void leave();
  void settle(bool agreed);
  void end(Proposed::End end, Error error);
  [[nodiscard]] std::shared_ptr<Work> make_work(Submission& submission) const;
  Result<void> take_results();
  void start(Submissions::Draft& draft);
  void release_held();
  bool move(TimePoint now);
  void pass_on_ask(const Ask& ask, Rank from, TimePoint now);

  Parts parts_;

  // Changed by the holder of the progress lock only, with the engine lock held where others read
  // it.
  Lanes lanes_;
  Lane* lane_ = nullptr;  // of the last proposal; it is there while that is open
  Proposed proposed_;
  Contributions contributions_;
  Decided held_;   // what has been decided behind an own proposal that is open
  Pauses pauses_;  // before the first yield of a wait
};

}  // namespace farandole

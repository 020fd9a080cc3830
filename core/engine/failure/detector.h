/// The failure detector: notices that a rank is lost or that an operation is stuck, finds the first
/// cause together with the other ranks, and ends the world with it.
#pragma once

#include <poll.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/phase.h"
#include "engine/control/negotiator.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/failure/cause.h"
#include "engine/failure/heartbeat.h"
#include "engine/failure/survey.h"

namespace farandole {

/// Used by the holder of the progress lock only, except for pulse(), so it needs no lock of its
/// own.
class FailureDetector final : public FailureSink {
 public:
  /// What it asks of the rest of the engine.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// True if the world has shut down and no rank needs this one any more. Then a peer that is
    /// gone has left properly, and its loss is no failure.
    virtual bool orderly_end() = 0;
    struct Needs {
      std::vector<Negotiator::Pending> owed;  ///< operations that the negotiator knows of
      std::string proposed;  ///< the operation proposed on the fast path; empty: none
    };
    /// What a rank is needed for.
    virtual Needs needs(Rank rank) = 0;
    /// A rank is lost. Ends what needs no more of it: what it brought before is still here.
    virtual void finish_what_has_come() = 0;
    /// Ends the world. `from`: the neighbour that sent the cause and need not be told.
    virtual void abort(const Error& cause, std::optional<Rank> from) = 0;
  };

  struct Options {
    HeartbeatOptions heartbeat;
    Duration operation_timeout;
  };
  FailureDetector(const Options& options, Peers& peers, const Phase& phase, const Log& log,
                  Dispatcher& dispatcher, Owner& owner);

  /// Begins to watch: all ranks count as alive now.
  void start(TimePoint now) { beats_.start(now); }
  /// See Beats::pulse(). Any thread.
  void pulse() noexcept { beats_.pulse(); }

  /// A message came from a neighbour. True if it is only a heartbeat.
  [[nodiscard]] bool heard(Rank from, std::span<const std::byte> frame, TimePoint now);
  /// Takes a message of a neighbour if it is one for the failure detector; else returns false.
  [[nodiscard]] bool take(Rank from, std::span<const std::byte> frame, TimePoint now);

  void report_loss(Rank rank, Error error, Evidence evidence, TimePoint now) override;
  void report_failure(Error error, Evidence evidence, TimePoint now) override;
  /// The running operation has made no progress for its time limit.
  void overdue(TimePoint now) { survey_.begin(now); }

  /// Checks heartbeats if that is due.
  void look(TimePoint now);
  /// True while evidence waits for the decision of rank 0. No operation runs meanwhile.
  [[nodiscard]] bool open() const noexcept { return cause_finder_.open(); }
  /// Only while open(). True: the cause was decided.
  bool decide(TimePoint now);
  /// Before anything comes of the loss of a rank: see Owner. What is reported meanwhile comes of
  /// that loss, so it is not evidence.
  void finish_first();
  /// Something was reported since finish_first() began: nothing that may have failed must go on.
  [[nodiscard]] bool more_failed() const noexcept { return more_failed_; }
  /// A cause was found: drops the evidence.
  void close() noexcept { cause_finder_.close(); }
  /// When look() or the decision is due.
  [[nodiscard]] std::optional<TimePoint> next() const;

  /// Adds the descriptors that tell about lost ranks.
  void watch(std::vector<pollfd>& fds) const;
  /// After a sleep: the entries that watch() added, with their revents.
  void woken(const pollfd* fds, std::size_t count);

 private:
  [[nodiscard]] bool of_a_link(Rank rank, Evidence evidence) const;
  void explain(Error& error, Evidence evidence);

  Peers& peers_;
  const Phase& phase_;
  Dispatcher& dispatcher_;
  Owner& owner_;
  std::optional<Rank> parent_;  // in the control tree
  bool finishing_ = false;
  bool more_failed_ = false;
  CauseFinder cause_finder_;
  Beats beats_;
  SurveyRunner survey_;
};

}  // namespace farandole

/// The failure detector: notices that ranks are lost or that nothing moves, finds out with the
/// others who failed first, and ends the world by it.
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
#include "engine/failure/beats.h"
#include "engine/failure/inquest.h"
#include "engine/failure/inquiry.h"
#include "engine/failure/losses.h"

namespace rueda {

/// Holder of the baton only, except for pulse(): so nothing here has a lock.
class FailureDetector final : public Losses {
 public:
  /// What it asks of the rest of the engine.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// After the shutdown, when nothing is owed to anybody any more, whoever is gone has left, as
    /// this rank does. True: the loss of a peer means nothing.
    virtual bool orderly_end() = 0;
    struct Needs {
      std::vector<Negotiator::Pending> owed;  ///< what the negotiator knows
      std::string offered;                    ///< what waits for everybody, unknown to it; or empty
    };
    /// What a rank is needed for.
    virtual Needs needs(Rank rank) = 0;
    /// The world is over. `from`: who said it, and need not be told.
    virtual void abort(const Error& cause, std::optional<Rank> from) = 0;
  };

  struct Options {
    HeartbeatOptions heartbeat;
    Duration operation_timeout;
  };
  FailureDetector(const Options& options, Peers& peers, const Phase& phase, const Log& log,
                  Dispatcher& dispatcher, Owner& owner);

  /// All ranks live now.
  void start(TimePoint now) { beats_.start(now); }
  /// This process runs, though nobody drives for a while. Any thread.
  void pulse() noexcept { beats_.pulse(); }

  /// A message of a neighbour. True if it says no more than that it lives.
  [[nodiscard]] bool heard(Rank from, std::span<const std::byte> frame, TimePoint now);
  /// A message of a neighbour. True if it was for the failure detector.
  [[nodiscard]] bool take(Rank from, std::span<const std::byte> frame, TimePoint now);

  void lose(Rank rank, Error error, Evidence evidence, TimePoint now) override;
  void accuse(Error error, Evidence evidence, TimePoint now) override;
  /// The operation under way has made no progress for its time limit.
  void overdue(TimePoint now) { inquiry_.begin(now); }

  /// Looks for beats if it is time.
  void look(TimePoint now);
  /// Evidence waits for the verdict of others; nothing runs meanwhile.
  [[nodiscard]] bool open() const noexcept { return inquest_.open(); }
  /// Only while open(). True: there is a verdict.
  bool judge(TimePoint now);
  /// There is a cause.
  void close() noexcept { inquest_.close(); }
  /// When look() or judge() has something to do.
  [[nodiscard]] std::optional<TimePoint> next() const;

  /// Adds the descriptors that tell of losses.
  void watch(std::vector<pollfd>& fds) const;
  /// After a sleep: those that watch() added.
  void woken(const pollfd* fds, std::size_t count);

 private:
  void explain(Error& error);

  Peers& peers_;
  const Phase& phase_;
  Dispatcher& dispatcher_;
  Owner& owner_;
  std::optional<Rank> parent_;  // in the control tree
  Inquest inquest_;
  Beats beats_;
  Inquiry inquiry_;
};

}  // namespace rueda

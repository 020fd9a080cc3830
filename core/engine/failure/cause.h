/// The first cause of a failure: what is known of it, who decides, and how it is told, so that all
/// ranks report the same one.
///
/// Ranks see one loss in different ways. The kernel tells ranks of the same host that the process
/// has ended. Other ranks see a connection end: that of the lost rank, or that of a rank that gave
/// up because of it. So a rank sends what it has seen up the control tree, as evidence, and waits
/// for the decision of rank 0. Rank 0 takes the strongest evidence; of equal evidence, the first.
/// A rank that gets no decision in time, or has lost its parent in the tree, decides by itself.
///
/// Rank 0 decides within 100 ms. If it does not, it may itself be the one that was lost first:
/// silent ranks are noticed by each neighbour in its own time, and the connection that has ended
/// is that of a rank that was quicker. So who is not certain waits until the silence of a rank is
/// noticed everywhere.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/control/peers.h"
#include "result.h"

namespace farandole {

/// How much is known about a loss, weakest first. The values travel in cause frames.
enum class Evidence : std::uint8_t {
  Data = 0,     ///< a data connection ended, perhaps only because that rank gave up
  Control = 1,  ///< a control connection ended without a cause, or carried a malformed message
  Certain = 2,  ///< the process has ended or was silent for too long; or the failure is not the
                ///< loss of a rank
};

/// A pure state machine: evidence and time come in by calls.
class CauseFinder {
 public:
  struct Finding {
    Error error;
    Evidence evidence = Evidence::Data;
  };

  /// `silence`: after which a rank without a sign of life counts as lost; 0: never.
  explicit CauseFinder(Duration silence = Duration::zero()) : silence_(silence) {}

  [[nodiscard]] bool open() const noexcept { return best_.has_value(); }
  [[nodiscard]] const Finding& best() const noexcept { return *best_; }

  /// Adds evidence of this rank or from below. True: it is stronger than all before, and should go
  /// up. `has_parent`: there is a parent, which will send a decision.
  bool hear(Error error, Evidence evidence, bool has_parent, TimePoint now);
  /// The parent cannot be asked any more.
  void lose_parent() noexcept { has_parent_ = false; }
  /// When this rank decides with what it knows. Only while open().
  [[nodiscard]] TimePoint deadline() const noexcept;
  void close() noexcept { best_.reset(); }

 private:
  Duration silence_;
  std::optional<Finding> best_;
  TimePoint since_{};
  bool has_parent_ = false;
};

/// The first byte of the message that tells the cause of a failure. A rank sends it to its
/// neighbours in the control tree before it closes its connections; no message of the negotiator
/// begins with this byte.
inline constexpr std::byte kCauseFrame{0xC0};

/// Sent to the parent, a cause is evidence. Sent by the parent, it is the decision of rank 0.
[[nodiscard]] std::vector<std::byte> encode_cause(const Error& error,
                                                  Evidence evidence = Evidence::Certain);
/// Nothing if the bytes are not a cause frame.
[[nodiscard]] std::optional<CauseFinder::Finding> decode_cause(std::span<const std::byte> frame);

/// Reports of failures to the failure detector, which implements this. Called by the holder of the
/// progress lock only.
class FailureSink {
 public:
  virtual ~FailureSink() = default;
  /// A peer seems to be lost.
  virtual void report_loss(Rank rank, Error error, Evidence evidence, TimePoint now) = 0;
  /// The world cannot go on because of `error`.
  virtual void report_failure(Error error, Evidence evidence, TimePoint now) = 0;
};

/// "rank 1 on host a is gone: its process has ended": the loss of a rank, in the one wording there
/// is.
[[nodiscard]] Error lost_error(const Peers& peers, Rank rank, Loss how);
/// "rank 1 on host a is `how`": any other loss.
[[nodiscard]] Error lost_error(const Peers& peers, Rank rank, std::string_view how);
/// Prepares an error of one rank for all ranks: adds on which rank and host, and in which
/// operation, it occurred.
void tell_whose(Error& error, Rank rank, const Peers& peers);

/// Sends a frame to all neighbours in the control tree but one: a broadcast, as the tree has no
/// cycles. Reports a neighbour that cannot be reached as lost. `only`: to no others than these, in
/// no order; null: to all.
void pass_on(std::span<const std::byte> frame, Rank but, Peers& peers, FailureSink& failures,
             TimePoint now, const std::vector<Rank>* only = nullptr);

}  // namespace farandole

/// How parts of the engine report failures to the failure detector, and how errors about them are
/// worded.
#pragma once

#include <string_view>

#include "engine/control/peers.h"
#include "engine/failure/cause_finder.h"
#include "result.h"

namespace farandole {

/// Implemented by the failure detector. Called by the holder of the progress lock only.
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

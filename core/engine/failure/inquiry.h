/// Asks other ranks about an operation that makes no progress here: it may be stuck, or wait for
/// ranks that are still at something else. See survey.h for what follows from the answers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/failure/losses.h"
#include "engine/failure/survey.h"

namespace rueda {

struct SurveyMessage;

/// Holder of the baton only.
class Inquiry {
 public:
  /// An operation without progress for `limit` is stuck.
  Inquiry(Duration limit, Peers& peers, Dispatcher& dispatcher, Losses& losses);

  /// The operation under way has made no progress for its time limit.
  void begin(TimePoint now);
  /// A question or an answer came. True if the bytes are one.
  bool take(std::span<const std::byte> frame, TimePoint now);

 private:
  void ask(TimePoint now);
  void conclude(TimePoint now);
  void carry(const SurveyMessage& message, TimePoint now);

  Duration limit_;
  Peers& peers_;
  Dispatcher& dispatcher_;
  Losses& losses_;
  std::optional<Rank> parent_;  // in the control tree
  Survey survey_;
};

}  // namespace rueda

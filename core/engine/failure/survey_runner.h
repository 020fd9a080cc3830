/// Runs a survey: asks other ranks about an operation that makes no progress on this rank. survey.h
/// decides from the answers whether it is stuck.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/failure/failure_sink.h"
#include "engine/failure/survey.h"

namespace farandole {

struct SurveyMessage;

/// Used by the holder of the progress lock only.
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

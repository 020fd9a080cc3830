/// An operation that makes no progress: whether it is stuck, or waits for ranks that are still at
/// something else. Holder of the baton only.

#include "engine/engine.h"
#include "engine/failure/survey_frame.h"

namespace rueda {

/// The operation under way has made no progress for its time limit.
void Engine::look_into(TimePoint now) {
  const Position position = dispatcher_->position();
  if (survey_.open() && survey_.position() == position && dispatcher_->stalled(now)) {
    conclude(now);  // those who have not answered by now have had their time
    return;
  }
  survey_.begin(position, options_.rank, dispatcher_->awaited());
  dispatcher_->wait_until(now + options_.operation_timeout / 2);
  inquire(now);
}

/// Asks whom there is to ask; if nobody is left, that was all.
void Engine::inquire(TimePoint now) {
  for (const Rank rank : survey_.take_questions()) {
    carry({.from = options_.rank, .to = rank, .position = survey_.position()}, now);
  }
  if (survey_.complete()) conclude(now);
}

void Engine::conclude(TimePoint now) {
  survey_.close();
  if (!dispatcher_->stalled(now)) return;  // it has moved meanwhile
  const Survey::Finding finding = survey_.conclude(now);
  if (!finding.stuck) {
    dispatcher_->wait_until(now + finding.wait);
    return;
  }
  Error error = dispatcher_->stuck(now);
  error.missing = finding.ranks;
  std::string names;
  for (std::size_t i = 0; i < finding.ranks.size(); ++i) {
    names += (i == 0               ? ""
              : finding.each_other ? " and "
                                   : ", ") +
             peers_.describe(finding.ranks[i]);
  }
  if (finding.each_other) {
    error.message += "; " + names + " wait for each other (is the network between them cut?)";
  } else if (!names.empty()) {
    error.message += "; waiting for " + names;
    error.message += finding.silent ? ", which gives no answer (stopped, or cut off?)"
                                    : " (is the network to it cut?)";
    if (finding.ranks.size() == 1) error.peer = finding.ranks.front();
  }
  error.message += ". HOROVOD_GLOO_TIMEOUT_SECONDS sets the limit";
  accuse(std::move(error), Evidence::Certain, now);
}

/// A question or an answer came. True if the bytes are one.
bool Engine::surveyed(std::span<const std::byte> frame, TimePoint now) {
  auto message = decode_survey(frame);
  if (!message) return false;
  if (message->to != options_.rank) {
    carry(*message, now);
  } else if (!message->standing) {
    carry({.from = options_.rank,
           .to = message->from,
           .position = message->position,
           .standing = dispatcher_->standing(message->position, now)},
          now);
  } else if (survey_.open() && survey_.position() == message->position) {
    survey_.hear(message->from, *std::move(message->standing), now);
    inquire(now);
  }
  return true;
}

/// On its way along the control tree.
void Engine::carry(const SurveyMessage& message, TimePoint now) {
  if (message.to < 0 || message.to >= options_.size || message.to == options_.rank) return;
  std::optional<Rank> hop = parent_;
  for (Rank rank = message.to;;) {  // up from there, until this rank is found above it
    const auto above = control_tree(options_.groups, rank).parent;
    if (!above) break;
    if (*above == options_.rank) {
      hop = rank;
      break;
    }
    rank = *above;
  }
  ControlChannel* const channel = hop ? peers_.channel(*hop) : nullptr;
  if (channel == nullptr) return;
  auto sent = channel->send(encode_survey(message));
  if (sent) sent = channel->flush();
  if (!sent) lose(*hop, std::move(sent).error(), Evidence::Control, now);
}

}  // namespace rueda

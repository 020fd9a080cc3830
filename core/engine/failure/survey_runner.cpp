#include "engine/failure/survey_runner.h"

#include "engine/control/world.h"
#include "engine/failure/survey_frame.h"

namespace farandole {

SurveyRunner::SurveyRunner(Duration limit, Peers& peers, Dispatcher& dispatcher,
                           FailureSink& failures)
    : limit_(limit),
      peers_(peers),
      dispatcher_(dispatcher),
      failures_(failures),
      parent_(control_tree(peers.groups(), peers.self()).parent),
      survey_(limit) {}

void SurveyRunner::begin(TimePoint now) {
  const Position position = dispatcher_.position();
  if (survey_.open() && survey_.position() == position && dispatcher_.stalled(now)) {
    conclude(now);  // ranks that have not answered by now count as silent
    return;
  }
  survey_.begin(position, peers_.self(), dispatcher_.awaited());
  dispatcher_.wait_until(now + limit_ / 2);
  ask(now);
}

/// Sends the next questions. Concludes the survey if all answers are there.
void SurveyRunner::ask(TimePoint now) {
  for (const Rank rank : survey_.take_questions()) {
    carry({.from = peers_.self(), .to = rank, .position = survey_.position()}, now);
  }
  if (survey_.complete()) conclude(now);
}

void SurveyRunner::conclude(TimePoint now) {
  survey_.close();
  if (!dispatcher_.stalled(now)) return;  // the operation has made progress meanwhile
  const Survey::Finding finding = survey_.conclude(now);
  if (!finding.stuck) {
    dispatcher_.wait_until(now + finding.wait);
    return;
  }
  Error error = dispatcher_.stuck(now);
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
  failures_.report_failure(std::move(error), Evidence::Certain, now);
}

bool SurveyRunner::take(std::span<const std::byte> frame, TimePoint now) {
  auto message = decode_survey(frame);
  if (!message) return false;
  if (message->to != peers_.self()) {
    carry(*message, now);
  } else if (!message->standing) {
    carry({.from = peers_.self(),
           .to = message->from,
           .position = message->position,
           .standing = dispatcher_.standing(message->position, now)},
          now);
  } else if (survey_.open() && survey_.position() == message->position) {
    survey_.hear(message->from, *std::move(message->standing), now);
    ask(now);
  }
  return true;
}

/// Sends or forwards a message along the control tree.
void SurveyRunner::carry(const SurveyMessage& message, TimePoint now) {
  if (message.to < 0 || message.to >= peers_.size() || message.to == peers_.self()) return;
  std::optional<Rank> hop = parent_;
  for (Rank rank = message.to;
       ;) {  // walks up from the receiver: the child below this rank, if it is one of its subtree
    const auto above = control_tree(peers_.groups(), rank).parent;
    if (!above) break;
    if (*above == peers_.self()) {
      hop = rank;
      break;
    }
    rank = *above;
  }
  ControlChannel* const channel = hop ? peers_.channel(*hop) : nullptr;
  if (channel == nullptr) return;
  auto sent = channel->post(encode_survey(message));
  if (!sent) failures_.report_loss(*hop, std::move(sent).error(), Evidence::Control, now);
}

}  // namespace farandole

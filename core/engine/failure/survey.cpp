#include "engine/failure/survey.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/control/world.h"

namespace farandole {

namespace {

// Little endian: hosts of other byte orders are not supported.
struct [[gnu::packed]] Head {
  std::uint8_t mark;
  std::uint8_t answers;  // 0 a question, 1 an answer
  std::uint8_t stream;
  std::uint8_t state;
  std::int32_t from;
  std::int32_t to;
  std::uint64_t number;
  std::uint32_t quiet_ms;
  std::uint32_t count;  // of ranks waited for, which follow, 4 bytes each
};

}  // namespace

void Survey::begin(Position position, Rank self, const std::vector<Rank>& awaited) {
  if (position != position_) past_.clear();
  open_ = true;
  position_ = position;
  self_ = self;
  awaited_ = awaited;
  ranks_.clear();
  unasked_.clear();
  asked_ = heard_ = 0;
  moving_ = false;
  ask(awaited_);
}

void Survey::ask(const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks) {
    if (rank != self_ && ranks_.try_emplace(rank).second) unasked_.push_back(rank);
  }
}

std::vector<Rank> Survey::take_questions() {
  const std::size_t count = std::min(unasked_.size(), kAtATime - (asked_ - heard_));
  const auto end = unasked_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Rank> now(unasked_.begin(), end);
  unasked_.erase(unasked_.begin(), end);
  asked_ += count;
  return now;
}

void Survey::hear(Rank from, Standing standing, TimePoint now) {
  const auto found = ranks_.find(from);
  if (!open_ || found == ranks_.end() || found->second.answered) return;
  Asked& asked = found->second;
  asked.answered = true;
  ++heard_;
  asked.since = now - standing.quiet;
  if (standing.state == Standing::State::Past) {
    // Its progress in later operations does not help this one.
    const TimePoint first = past_.try_emplace(from, asked.since).first->second;
    asked.since = std::min(asked.since, first);
  }
  moving_ = moving_ || now - asked.since < limit_;
  std::erase(standing.waits_for, from);
  asked.standing = std::move(standing);
  ask(asked.standing.waits_for);
}

Survey::Finding Survey::conclude(TimePoint now) const {
  Finding finding;
  std::vector<Rank> silent;
  for (const auto& [rank, asked] : ranks_) {
    if (!asked.answered) {
      silent.push_back(rank);
    } else {
      finding.wait = std::max(finding.wait, limit_ - (now - asked.since));
    }
  }
  if (moving_ || finding.wait > Duration::zero()) {
    // Short enough to notice soon when that rank stops, long enough to cost nothing.
    finding.wait = std::max(finding.wait, limit_ / 8);
    return finding;
  }
  finding.stuck = true;
  if (!silent.empty()) {
    finding.ranks = std::move(silent);
    finding.silent = true;
    return finding;
  }
  const auto waits = [&](Rank one, Rank other) {
    const auto found = ranks_.find(one);
    const auto& list = one == self_ ? awaited_ : found->second.standing.waits_for;
    return std::ranges::find(list, other) != list.end();
  };
  std::vector<Rank> all{self_};
  for (const auto& [rank, asked] : ranks_) all.push_back(rank);
  std::ranges::sort(all);
  for (const Rank one : all) {
    if (one != self_ && ranks_.at(one).standing.waits_for.empty()) finding.ranks.push_back(one);
  }
  if (!finding.ranks.empty()) return finding;
  for (const Rank one : all) {
    for (const Rank other : all) {
      if (one < other && waits(one, other) && waits(other, one)) {
        finding.ranks = {one, other};
        finding.each_other = true;
        return finding;
      }
    }
  }
  finding.ranks = awaited_;
  std::erase(finding.ranks, self_);
  return finding;
}

std::vector<std::byte> encode_survey(const SurveyMessage& message) {
  Head head{};
  head.mark = static_cast<std::uint8_t>(kSurveyFrame);
  head.answers = static_cast<std::uint8_t>(message.standing ? 1 : 0);
  head.stream = static_cast<std::uint8_t>(message.position.stream);
  head.from = message.from;
  head.to = message.to;
  head.number = message.position.number;
  std::vector<Rank> ranks;
  if (const auto& standing = message.standing) {
    head.state = static_cast<std::uint8_t>(standing->state);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(standing->quiet).count();
    head.quiet_ms = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(ms, 0, std::numeric_limits<std::int32_t>::max()));
    ranks = standing->waits_for;
    if (ranks.size() > Survey::kMostNamed) ranks.resize(Survey::kMostNamed);
    head.count = static_cast<std::uint32_t>(ranks.size());
  }
  std::vector<std::byte> frame(sizeof head + ranks.size() * sizeof(Rank));
  std::memcpy(frame.data(), &head, sizeof head);
  if (!ranks.empty()) {
    std::memcpy(frame.data() + sizeof head, ranks.data(), ranks.size() * sizeof(Rank));
  }
  return frame;
}

std::optional<SurveyMessage> decode_survey(std::span<const std::byte> frame) {
  Head head{};
  if (frame.size() < sizeof head || frame.front() != kSurveyFrame) return std::nullopt;
  std::memcpy(&head, frame.data(), sizeof head);
  const bool sane =
      head.answers <= 1 && head.stream <= static_cast<std::uint8_t>(Position::Stream::Proposals) &&
      head.state <= static_cast<std::uint8_t>(Standing::State::Past) &&
      head.count <= Survey::kMostNamed && frame.size() == sizeof head + head.count * sizeof(Rank);
  if (!sane) return std::nullopt;
  SurveyMessage message{
      .from = head.from,
      .to = head.to,
      .position = {.stream = static_cast<Position::Stream>(head.stream), .number = head.number}};
  if (head.answers == 0) return message;
  Standing standing{.state = static_cast<Standing::State>(head.state),
                    .quiet = std::chrono::milliseconds(head.quiet_ms),
                    .waits_for = std::vector<Rank>(head.count)};
  if (head.count != 0) {
    std::memcpy(standing.waits_for.data(), frame.data() + sizeof head, head.count * sizeof(Rank));
  }
  message.standing = std::move(standing);
  return message;
}

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

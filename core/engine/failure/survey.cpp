#include "engine/failure/survey.h"

#include <algorithm>

namespace farandole {

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

}  // namespace farandole

#include "engine/control/stall.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <map>
#include <utility>

#include "engine/base/wording.h"

namespace farandole {

namespace {

constexpr std::size_t kNamesPerRank = 6;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string in_seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds(duration));
  return text;
}

std::string question(const Waiting& one) {
  RankSet missing;
  for (const Rank rank : one.missing) missing.add(rank);
  return all_must_call(one.reported, missing);
}

}  // namespace

StallMonitor::StallMonitor(Duration warning, Duration shutdown,
                           std::function<std::string(Rank)> who)
    : warning_(warning), shutdown_(shutdown), who_(std::move(who)) {
  assert(shutdown == Duration::zero() || shutdown >= warning);
}

std::string StallMonitor::names(std::span<const Rank> ranks) const {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamesPerRank); ++i) {
    text += i == 0 ? "" : ", ";
    text += who_ ? who_(ranks[i]) : "rank " + std::to_string(ranks[i]);
  }
  if (ranks.size() > kNamesPerRank) {
    text += " and " + std::to_string(ranks.size() - kNamesPerRank) + " more";
  }
  return text;
}

TimePoint StallMonitor::due(TimePoint oldest) const {
  TimePoint at = oldest + warning_;
  if (last_check_) at = std::max(at, *last_check_ + warning_);
  const TimePoint end = oldest + shutdown_;
  if (shutdown_ > Duration::zero() && (!last_check_ || *last_check_ < end)) at = std::min(at, end);
  return at;
}

std::optional<StallReport> StallMonitor::check(TimePoint now, std::span<const Waiting> waiting) {
  struct Late {
    std::vector<const std::string*> names;
    bool past_shutdown = false;
  };
  std::map<Rank, Late> late;
  StallReport report;
  const Waiting* oldest = nullptr;  // that ranks are missing for
  for (const Waiting& one : waiting) {
    const Duration waited = now - one.since;
    if (waited < warning_) continue;
    last_check_ = now;
    const bool past_shutdown = shutdown_ > Duration::zero() && waited >= shutdown_;
    if (oldest == nullptr && !one.missing.empty()) oldest = &one;
    for (Rank rank : one.missing) {
      late[rank].names.push_back(&one.name);
      late[rank].past_shutdown |= past_shutdown;
    }
    if (past_shutdown && !report.fatal && !one.missing.empty()) {
      report.fatal = Error{
          .code = Code::Timeout,
          .message =
              one.name + " was not submitted by all ranks within " + in_seconds(shutdown_) +
              " s; waiting for " + names(one.missing) +
              " (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS). If they are not late: " + question(one),
          .peer = one.missing.front(),
          .tensor = one.name,
          .missing = one.missing,
          .waited_s = seconds(waited),
          .cause = nullptr};
    }
  }
  if (late.empty()) return std::nullopt;
  report.text =
      "Some operations were submitted by a part of the ranks and are waiting for remainder of "
      "ranks "
      "for more than " +
      in_seconds(warning_) +
      " seconds. Either ranks submit different operations, or the missing ranks are late or "
      "stuck.\n"
      "Missing ranks:";
  for (const auto& [rank, entry] : late) {
    report.text += '\n';
    report.text += std::to_string(rank);
    report.text += entry.past_shutdown ? "!: [" : ": [";
    for (std::size_t i = 0; i < std::min(entry.names.size(), kNamesPerRank); ++i) {
      report.text += (i == 0 ? "" : ", ") + *entry.names[i];
    }
    if (entry.names.size() > kNamesPerRank) report.text += " ...";
    report.text += "]";
  }
  report.text += "\nIf they are not late, of " + oldest->name + ": " + question(*oldest);
  if (report.fatal) report.text += "\nWill shutdown";
  return report;
}

}  // namespace farandole

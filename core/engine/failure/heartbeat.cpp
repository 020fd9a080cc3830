#include "engine/failure/heartbeat.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace farandole {

namespace {

std::int64_t nanoseconds(TimePoint time) { return time.time_since_epoch().count(); }

std::string in_seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

Heartbeat::Heartbeat(const HeartbeatOptions& options, std::size_t peers, TimePoint now)
    : options_(options), peers_(peers, Peer{now}), looked_(now), beat_at_(now), next_(now) {}

void Heartbeat::heard(std::size_t peer, TimePoint when) noexcept {
  peers_[peer].heard = std::max(peers_[peer].heard, when);
}

void Heartbeat::answer(TimePoint now) noexcept {
  if (beat_at_ - now > options_.interval() / 2) return;
  beat_at_ = std::min(beat_at_, now);
  next_ = std::min(next_, now);
}

Heartbeat::Report Heartbeat::look(TimePoint now, TimePoint ran) {
  Report report;
  const Duration since = now - std::max(looked_, std::min(ran, now));
  if (since > 2 * options_.interval()) {
    const Duration pause = since - options_.interval();
    for (Peer& peer : peers_) peer.heard = std::min(now, peer.heard + pause);
    if (pause > options_.warning) report.pause = pause;
  }
  looked_ = now;
  report.beat = now >= beat_at_;
  if (report.beat) beat_at_ = now + options_.interval();
  next_ = beat_at_;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    const Duration silence = now - peer.heard;
    const bool suspected = silence >= options_.warning;
    if (suspected && !peer.suspected) report.suspected.push_back(i);
    if (!suspected && peer.suspected) report.returned.push_back(i);
    peer.suspected = suspected;
    if (silence >= options_.limit && (!report.lost || silence > report.lost->silence)) {
      report.lost = Lost{.peer = i, .silence = silence};
    }
    next_ = std::min(next_, peer.heard + (suspected ? options_.limit : options_.warning));
  }
  // A lost rank stays lost: it makes the next look no earlier.
  if (report.lost) next_ = beat_at_;
  return report;
}

std::size_t Heartbeat::silent() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.suspected; }));
}

void Beats::start(TimePoint now) {
  if (peers_.size() == 1 || options_.limit <= Duration::zero()) return;
  watched_ = peers_.watched();
  ran_ns_.store(nanoseconds(now), std::memory_order_relaxed);
  heartbeat_.emplace(options_, watched_.size(), now);
  pulse();
}

/// The engine thread calls this while user threads take the progress lock so often that look() is
/// not called. After a pause of this process it leaves `ran_ns_` alone, so that look() notices the
/// pause.
void Beats::pulse() noexcept {
  if (options_.limit <= Duration::zero()) return;
  const std::int64_t now = nanoseconds(Clock::now());
  peers_.beat().at.store(now, std::memory_order_relaxed);
  const std::int64_t gap = now - ran_ns_.load(std::memory_order_relaxed);
  if (Duration(gap) <= options_.interval()) ran_ns_.store(now, std::memory_order_relaxed);
}

void Beats::heard(Rank from, TimePoint now) {
  if (!heartbeat_) return;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (watched_[i].rank == from) heartbeat_->heard(i, now);
  }
}

void Beats::answer(TimePoint now) {
  if (heartbeat_) heartbeat_->answer(now);
}

std::optional<TimePoint> Beats::next() const {
  if (!heartbeat_) return std::nullopt;
  return heartbeat_->next();
}

void Beats::look(TimePoint now) {
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    Peers::Watched& watched = watched_[i];
    if (watched.word == nullptr) continue;
    const std::int64_t at = watched.word->at.load(std::memory_order_relaxed);
    if (std::exchange(watched.seen, at) == at) continue;
    // Containers may have clocks of their own: the time is limited to this rank's `now`.
    heartbeat_->heard(i, std::min(TimePoint(Duration(at)), now));
  }
  const TimePoint ran(Duration(ran_ns_.load(std::memory_order_relaxed)));
  const Heartbeat::Report seen = heartbeat_->look(now, ran);
  ran_ns_.store(nanoseconds(now), std::memory_order_relaxed);
  if (seen.beat) beat(now);
  if (seen.pause > Duration::zero()) {
    log_.write(LogLevel::Warning, "this process did not run for " + in_seconds(seen.pause) +
                                      ": it was stopped, or its machine slept or is overloaded");
  }
  if (!phase_.quiet()) report(seen, now);
}

void Beats::beat(TimePoint now) {
  pulse();
  peers_.persist();
  for (auto& neighbour : peers_.neighbours()) {
    if (neighbour.socket == nullptr) continue;
    auto sent = neighbour.channel->post({&kBeatFrame, 1});
    if (!sent)
      failures_.report_loss(neighbour.rank, std::move(sent).error(), Evidence::Control, now);
  }
}

void Beats::report(const Heartbeat::Report& report, TimePoint now) {
  for (const std::size_t i : report.suspected) {
    log_.write(LogLevel::Warning, "no sign of life from " + peers_.describe(watched_[i].rank) +
                                      " for " + in_seconds(options_.warning) +
                                      ": it counts as lost after " + in_seconds(options_.limit));
  }
  for (const std::size_t i : report.returned) {
    log_.write(LogLevel::Warning, peers_.describe(watched_[i].rank) + " is alive again");
  }
  if (!report.lost) return;
  const Peers::Watched& watched = watched_[report.lost->peer];
  std::string how = "lost: no sign of life for " + in_seconds(report.lost->silence);
  how += watched.word != nullptr
             ? " (its process is stopped, or starved of processor time)"
             : " (its process is stopped, its host is switched off, or one of the two hosts is cut "
               "off from the network)";
  Error error = lost_error(peers_, watched.rank, how);
  error.waited_s = std::chrono::duration<double>(report.lost->silence).count();
  failures_.report_loss(watched.rank, std::move(error), Evidence::Certain, now);
}

}  // namespace farandole

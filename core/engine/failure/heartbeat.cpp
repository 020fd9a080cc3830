#include "engine/failure/heartbeat.h"

#include <algorithm>

namespace farandole {

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

}  // namespace farandole

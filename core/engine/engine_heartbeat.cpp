/// Signs of life: this rank's own, and those of the ranks that it watches. Holder of the baton
/// only, except for pulse().

#include <algorithm>
#include <cstdio>

#include "engine/engine.h"

namespace rueda {

namespace {

std::string in_seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

void Engine::watch_beats(TimePoint now) {
  if (options_.size == 1 || options_.heartbeat.limit <= Duration::zero()) return;
  watched_ = peers_.watched();
  ran_ns_.store(nanoseconds(now), std::memory_order_relaxed);
  heartbeat_.emplace(options_.heartbeat, watched_.size(), now);
  pulse();
}

/// The engine thread calls this while threads of the user come and go so fast that nobody looks
/// after beats. After a gap it leaves for look_for_beats() to see that there was one.
void Engine::pulse() noexcept {
  if (options_.heartbeat.limit <= Duration::zero()) return;
  const std::int64_t now = nanoseconds(Clock::now());
  peers_.beat().at.store(now, std::memory_order_relaxed);
  const std::int64_t gap = now - ran_ns_.load(std::memory_order_relaxed);
  if (Duration(gap) <= options_.heartbeat.interval) {
    ran_ns_.store(now, std::memory_order_relaxed);
  }
}

/// Whatever a neighbour says is a sign of life.
void Engine::note_beat(Rank from, TimePoint now) {
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (watched_[i].rank == from) heartbeat_->heard(i, now);
  }
}

void Engine::look_for_beats(TimePoint now) {
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    Peers::Watched& watched = watched_[i];
    if (watched.word == nullptr) continue;
    const std::int64_t at = watched.word->at.load(std::memory_order_relaxed);
    if (std::exchange(watched.seen, at) == at) continue;
    // Where containers have clocks of their own it was after the last look all the same.
    heartbeat_->heard(i, std::min(TimePoint(Duration(at)), now));
  }
  const TimePoint ran(Duration(ran_ns_.load(std::memory_order_relaxed)));
  const Heartbeat::Report report = heartbeat_->look(now, ran);
  ran_ns_.store(nanoseconds(now), std::memory_order_relaxed);
  if (report.beat) {
    pulse();
    for (auto& neighbour : peers_.neighbours()) {
      if (neighbour.socket == nullptr) continue;
      auto sent = neighbour.channel->send({&kBeatFrame, 1});
      if (sent) sent = neighbour.channel->flush();
      if (!sent) lose(neighbour.rank, std::move(sent).error(), Evidence::Control, now);
    }
  }
  if (report.pause > Duration::zero()) {
    log_.write(LogLevel::Warning, "this process did not run for " + in_seconds(report.pause) +
                                      ": it was stopped, or its machine slept or is overloaded");
  }
  if (quiet()) return;
  for (const std::size_t i : report.suspected) {
    log_.write(LogLevel::Warning, "no sign of life from " + peers_.describe(watched_[i].rank) +
                                      " for " + in_seconds(options_.heartbeat.warning) +
                                      ": it counts as lost after " +
                                      in_seconds(options_.heartbeat.limit));
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
  Error error = lost_error(watched.rank, how);
  error.waited_s = std::chrono::duration<double>(report.lost->silence).count();
  lose(watched.rank, std::move(error), Evidence::Certain, now);
}

}  // namespace rueda

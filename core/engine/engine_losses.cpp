/// Ranks that are gone, and how the world ends by it. Holder of the baton only.

#include "engine/engine.h"

#include "engine/cause_frame.h"

namespace rueda {

namespace {

using std::chrono::milliseconds;

/// After the bare end of a connection: how long to wait for somebody who knows why.
constexpr auto kCauseGrace = milliseconds(200);

}  // namespace

Error Engine::lost_error(Rank rank, std::string_view how) const {
  return Error{.code = Code::PeerLost,
               .message = peers_.describe(rank) + " is gone: " + std::string(how) +
                          ". Look at its own output for the reason",
               .peer = rank};
}

void Engine::watch(std::vector<pollfd>& fds) const {
  if (!quiet() && !suspicion_) peers_.watch(fds);  // what broke stays readable
}

void Engine::woken(const pollfd* fds, std::size_t count) {
  if (quiet() || suspicion_) return;
  if (const auto loss = peers_.lost(fds, count)) {
    lose(loss->rank,
         lost_error(loss->rank,
                    loss->certain ? "its process has ended" : "its connection has ended"),
         loss->certain, Clock::now());
  }
}

/// After the shutdown, when nothing is owed to anybody any more, whoever is gone has left, as this
/// rank does. True: the loss of a peer means nothing.
bool Engine::orderly_end() {
  if (!quiet() && !(ended_.load() && dispatcher_->idle())) return false;
  if (!has_failed_.load()) closed_.store(true);
  progress_->completed();
  return true;
}

/// A peer seems lost. Who really went first is known best by those who saw it: look for what they
/// left, and after a bare end of a connection give them a moment.
void Engine::lose(Rank rank, Error error, bool certain, TimePoint now) {
  if (orderly_end()) return;
  if (error.peer < 0) error.peer = rank;
  if (error.code != Code::PeerLost) {
    error = Error::wrap(std::move(error), "control connection to " + peers_.describe(rank));
    error.code = Code::PeerLost;
  } else if (!certain && error.message.find(peers_.describe(rank)) == std::string::npos) {
    error = Error::wrap(std::move(error), peers_.describe(rank) + " is gone");
  }
  if (const auto cause = peers_.left_cause()) {
    abort(*cause);
  } else if (certain) {
    abort(error);
  } else if (!suspicion_) {
    suspicion_ = Suspicion{.error = std::move(error), .until = now + kCauseGrace};
  }
}

bool Engine::settle_suspicion(TimePoint now) {
  if (orderly_end()) {
    suspicion_.reset();
    return true;
  }
  if (const auto cause = peers_.left_cause()) {
    abort(*cause);
  } else if (now >= suspicion_->until || peers_.gone(suspicion_->error.peer)) {
    abort(Error(suspicion_->error));
  } else {
    return false;
  }
  return true;
}

/// The world is over: everybody who can still be told learns the first cause, everything pending
/// fails with it.
void Engine::abort(const Error& error) {
  std::vector<std::unique_ptr<Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = error;
    for (auto& [ticket, entry] : entries_) entries.push_back(std::move(entry));
    entries_.clear();
    if (Offers* offers = peers_.offers(); offers != nullptr && offers->open()) {
      offers->settle();
      end_offer(Offered::End::Failed, error);
    }
  }
  suspicion_.reset();
  log_.write(LogLevel::Debug, "aborting: " + error.what());
  if (!closed_.load()) peers_.leave_cause(error);
  const auto frame = encode_cause(error);
  for (auto& neighbour : peers_.neighbours()) {
    if (closed_.load()) break;  // they know that the world has ended
    if (neighbour.channel->send(frame)) {
      [[maybe_unused]] const auto flushed = neighbour.channel->flush();  // it may be the dead one
    }
  }
  auto running = dispatcher_->take_all();
  std::move(running.begin(), running.end(), std::back_inserter(entries));
  if (timeline_.recording()) timeline_.aborted(Clock::now());
  has_failed_.store(true, std::memory_order_seq_cst);
  finish(std::move(entries), error);
}

}  // namespace rueda

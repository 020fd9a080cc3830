/// Ranks that are gone, and how the world ends by it. Holder of the baton only.

#include "engine/engine.h"

#include "engine/base/names.h"
#include "engine/failure/cause_frame.h"

namespace rueda {

namespace {

constexpr std::size_t kMostNames = 6;

/// With the results that it has memory for, until the process ends.
void leave_in_use(const std::shared_ptr<Work>& work) {
  static std::mutex mutex;
  static auto& left = *new std::vector<std::shared_ptr<Work>>;  // never destroyed
  work->in_use = true;
  const std::lock_guard lock(mutex);
  left.push_back(work);
}

}  // namespace

Error Engine::lost_error(Rank rank, std::string_view how) const {
  return Error{.code = Code::PeerLost,
               .message = peers_.describe(rank) + " is " + std::string(how),
               .peer = rank};
}

void Engine::watch(std::vector<pollfd>& fds) const {
  if (!quiet() && !inquest_.open()) peers_.watch(fds);  // what broke stays readable
}

void Engine::woken(const pollfd* fds, std::size_t count) {
  if (quiet() || inquest_.open()) return;
  if (const auto loss = peers_.lost(fds, count)) {
    lose(loss->rank,
         lost_error(loss->rank, loss->certain ? "gone: its process has ended"
                                              : "gone: its connection has ended"),
         loss->certain ? Evidence::Certain : Evidence::Control, Clock::now());
  }
}

/// After the shutdown, when nothing is owed to anybody any more, whoever is gone has left, as this
/// rank does. True: the loss of a peer means nothing.
bool Engine::orderly_end() {
  if (!quiet() && !(ended_.load() && dispatcher_->idle() && held_.empty())) return false;
  if (!has_failed_.load()) closed_.store(true);
  progress_->completed();
  return true;
}

/// A peer seems lost.
void Engine::lose(Rank rank, Error error, Evidence evidence, TimePoint now) {
  if (orderly_end()) return;
  if (error.peer < 0) error.peer = rank;
  if (error.code != Code::PeerLost) {
    error = Error::wrap(std::move(error), "control connection to " + peers_.describe(rank));
    error.code = Code::PeerLost;
  } else if (evidence != Evidence::Certain) {
    Error plain = lost_error(error.peer, "gone: its connection has ended");
    if (error.message != plain.message && !error.message.starts_with("connection closed")) {
      plain.message += " (" + error.what() + ")";
    }
    plain.tensor = std::move(error.tensor);
    error = std::move(plain);
  }
  if (parent_ == rank) inquest_.lose_way_up();
  accuse(std::move(error), evidence, now);
}

/// The world cannot go on. Who failed first is known best by those who saw it: look for what they
/// left, and ask up the tree.
void Engine::accuse(Error error, Evidence evidence, TimePoint now) {
  if (quiet()) return;
  if (error.peer != options_.rank && !peers_.intact()) {
    // Whatever it is: the others have lost this rank, not this rank them.
    error = lost_error(options_.rank,
                       "gone: it has closed the descriptors of its connections (os.closerange?)");
    evidence = Evidence::Certain;
  }
  if (const auto cause = peers_.left_cause()) {
    abort(*cause);
    return;
  }
  if (error.code == Code::PeerLost && error.tensor.empty()) {
    error.tensor = dispatcher_->under_way(error.peer);
  }
  const bool way_up = parent_ && *parent_ != error.peer;
  const bool news = inquest_.hear(error, evidence, way_up, now);
  if (news && way_up) {
    ControlChannel& up = *peers_.channel(*parent_);
    auto sent = up.send(encode_cause(error, evidence));
    if (sent) sent = up.flush();
    if (!sent) inquest_.lose_way_up();
  }
  judge(now);
}

/// True: there is a verdict.
bool Engine::judge(TimePoint now) {
  if (orderly_end()) {
    inquest_.close();
    return true;
  }
  if (const auto cause = peers_.left_cause()) {
    abort(*cause);
    return true;
  }
  const Inquest::Finding& best = inquest_.best();
  if (best.error.code == Code::PeerLost && best.evidence != Evidence::Certain &&
      peers_.gone(best.error.peer)) {
    Error error = lost_error(best.error.peer, "gone: its process has ended");
    error.tensor = best.error.tensor;
    accuse(std::move(error), Evidence::Certain, now);
    return true;
  }
  if (now < inquest_.deadline()) return false;
  Error error = best.error;
  if (constexpr std::string_view kBare = "gone: its connection has ended";
      error.code == Code::PeerLost && best.evidence == Evidence::Control &&
      error.message.ends_with(kBare) && peers_.lives(error.peer)) {
    error.message.resize(error.message.size() - kBare.size());
    error.message += "gone: it has closed its connections, though its process lives";
  }
  explain(error);
  abort(error);
  return true;
}

/// What the lost rank was needed for.
void Engine::explain(Error& error) {
  if (error.code != Code::PeerLost || error.peer < 0) return;
  std::vector<Negotiator::Pending> owed;
  std::string offered;
  {
    const std::lock_guard lock(mutex_);
    owed = negotiator_->owed(error.peer);
    const Offers* offers = peers_.offers();
    if (offers != nullptr && offers->open()) offered = full_name(offered_.key);
  }
  if (!error.tensor.empty()) {
    error.message += ", in the middle of " + error.tensor;
  } else if (!owed.empty()) {
    error.tensor = owed.front().name;
    error.missing = owed.front().missing;
    error.message += ", while others waited for it in ";
    for (std::size_t i = 0; i < std::min(owed.size(), kMostNames); ++i) {
      error.message += (i == 0 ? "" : ", ") + owed[i].name;
    }
    if (owed.size() > kMostNames) {
      error.message += " and " + std::to_string(owed.size() - kMostNames) + " more";
    }
  } else if (!offered.empty()) {  // what waits for everybody, unknown to the negotiator
    error.message += ", while others waited for it in " + offered;
    error.tensor = std::move(offered);
  } else if (ended_.load(std::memory_order_relaxed)) {
    error.message += ", during the shutdown";
  } else {
    error.message += ", while nobody waited for it";
  }
  if (error.missing.empty() && !error.tensor.empty()) error.missing = {error.peer};
  error.message += ". Look at its own output for the reason";
}

/// The world is over: everybody who can still be told learns the first cause, everything pending
/// fails with it. `from`: who said it, and need not be told.
void Engine::abort(const Error& cause, std::optional<Rank> from) {
  Error error = cause;
  if (error.code == Code::PeerLost && error.peer == options_.rank) {
    error.message = "the other ranks have given up this one: " + error.message;
  }
  if (error.code == Code::Timeout && error.peer == options_.rank) {
    error.message = "the other ranks have waited for this one: " + error.message;
  }
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
    held_.clear();  // its entries are among those that fail here
  }
  inquest_.close();
  log_.write(LogLevel::Debug, "aborting: " + error.what());
  if (!closed_.load()) peers_.leave_cause(cause);
  const auto frame = encode_cause(cause);
  for (auto& neighbour : peers_.neighbours()) {
    if (closed_.load()) break;  // they know that the world has ended
    if (neighbour.rank == from) continue;
    if (neighbour.channel->send(frame)) {
      [[maybe_unused]] const auto flushed = neighbour.channel->flush();  // it may be the dead one
    }
  }
  if (foreign_ && error.code != Code::Shutdown) foreign_->abort();
  auto running = dispatcher_->take_all();
  if (foreign_ && foreign_->stuck()) {
    for (const auto& entry : running) leave_in_use(entry->work);
  }
  std::move(running.begin(), running.end(), std::back_inserter(entries));
  if (timeline_.recording()) timeline_.aborted(Clock::now());
  has_failed_.store(true, std::memory_order_seq_cst);
  finish(std::move(entries), error);
}

}  // namespace rueda

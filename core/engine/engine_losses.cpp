/// How the world ends. Holder of the baton only.

#include "engine/base/names.h"
#include "engine/engine.h"
#include "engine/failure/cause_frame.h"

namespace rueda {

namespace {

/// With the results that it has memory for, until the process ends.
void leave_in_use(const std::shared_ptr<Work>& work) {
  static std::mutex mutex;
  static auto& left = *new std::vector<std::shared_ptr<Work>>;  // never destroyed
  work->in_use = true;
  const std::lock_guard lock(mutex);
  left.push_back(work);
}

}  // namespace

bool Engine::orderly_end() {
  if (!phase_.quiet() && !(phase_.ended.load() && dispatcher_->idle() && held_.empty()))
    return false;
  if (!phase_.failed.load()) phase_.closed.store(true);
  progress_->completed();
  return true;
}

FailureDetector::Owner::Needs Engine::needs(Rank rank) {
  const std::lock_guard lock(mutex_);
  Needs needs{.owed = negotiator_->owed(rank), .offered = {}};
  const Offers* offers = peers_.offers();
  if (offers != nullptr && offers->open()) needs.offered = full_name(offered_.key);
  return needs;
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
  detector_->close();
  log_.write(LogLevel::Debug, "aborting: " + error.what());
  if (!phase_.closed.load()) peers_.leave_cause(cause);
  const auto frame = encode_cause(cause);
  for (auto& neighbour : peers_.neighbours()) {
    if (phase_.closed.load()) break;  // they know that the world has ended
    if (neighbour.rank == from) continue;
    [[maybe_unused]] const auto sent = neighbour.channel->post(frame);  // it may be the dead one
  }
  if (foreign_ && error.code != Code::Shutdown) foreign_->abort();
  auto running = dispatcher_->take_all();
  if (foreign_ && foreign_->stuck()) {
    for (const auto& entry : running) leave_in_use(entry->work);
  }
  std::move(running.begin(), running.end(), std::back_inserter(entries));
  if (timeline_.recording()) timeline_.aborted(Clock::now());
  phase_.failed.store(true, std::memory_order_seq_cst);
  finish(std::move(entries), error);
}

}  // namespace rueda

#include "engine/failure/detector.h"

#include <algorithm>

#include "engine/base/wording.h"
#include "engine/control/world.h"
#include "engine/failure/cause.h"

namespace farandole {

namespace {

constexpr std::size_t kMostNames = 6;
/// How often to look for a cause that another rank of this host has left.
constexpr auto kCauseLook = std::chrono::milliseconds(1);

}  // namespace

FailureDetector::FailureDetector(const Options& options, Peers& peers, const Phase& phase,
                                 const Log& log, Dispatcher& dispatcher, Owner& owner)
    : peers_(peers),
      phase_(phase),
      dispatcher_(dispatcher),
      owner_(owner),
      parent_(control_tree(peers.groups(), peers.self()).parent),
      cause_finder_(options.heartbeat.limit),
      beats_(options.heartbeat, peers, phase, log, *this),
      survey_(options.operation_timeout, peers, dispatcher, *this) {}

bool FailureDetector::heard(Rank from, std::span<const std::byte> frame, TimePoint now) {
  beats_.heard(from, now);
  if (frame.front() != kBeatFrame) return false;
  beats_.answer(now);
  return true;
}

bool FailureDetector::take(Rank from, std::span<const std::byte> frame, TimePoint now) {
  auto cause = decode_cause(frame);
  if (!cause) return survey_.take(frame, now);
  if (from == parent_) {  // the decision of rank 0
    owner_.abort(cause->error, from);
  } else {  // evidence of a rank below
    if (cause->error.code == Code::PeerLost) finish_first();
    report_failure(std::move(cause->error), cause->evidence, now);
  }
  return true;
}

void FailureDetector::look(TimePoint now) {
  if (const auto next = beats_.next(); next && now >= *next) beats_.look(now);
}

std::optional<TimePoint> FailureDetector::next() const {
  auto at = beats_.next();
  if (open()) at = std::min(at.value_or(TimePoint::max()), Clock::now() + kCauseLook);
  return at;
}

void FailureDetector::watch(std::vector<pollfd>& fds) const {
  if (!phase_.quiet() && !cause_finder_.open())
    peers_.watch(
        fds);  // a descriptor that reported an error stays ready, and would keep this loop awake
}

void FailureDetector::woken(const pollfd* fds, std::size_t count) {
  if (phase_.quiet() || cause_finder_.open()) return;
  if (const auto loss = peers_.lost(fds, count)) {
    report_loss(
        loss->rank,
        lost_error(peers_, loss->rank, loss->certain ? Loss::ProcessEnded : Loss::ConnectionEnded),
        loss->certain ? Evidence::Certain : Evidence::Control, Clock::now());
  }
}

void FailureDetector::finish_first() {
  if (finishing_ || open()) return;
  finishing_ = true;
  more_failed_ = false;
  owner_.finish_what_has_come();
  finishing_ = false;
}

void FailureDetector::report_loss(Rank rank, Error error, Evidence evidence, TimePoint now) {
  if (finishing_) {
    more_failed_ = true;
    return;
  }
  if (owner_.orderly_end()) return;
  finish_first();
  if (owner_.orderly_end()) return;  // that may have been the last that was owed
  if (error.peer < 0) error.peer = rank;
  if (error.code != Code::PeerLost) {
    error = Error::wrap(std::move(error), "control connection to " + peers_.describe(rank));
    error.code = Code::PeerLost;
  } else if (of_a_link(error.peer, evidence)) {
    // Rank 0 soon hears of it if one of the two has ended; then that is told instead.
    error.message = "the connection between " + peers_.describe(peers_.self()) + " and " +
                    peers_.describe(error.peer) + " has failed: " + error.what();
    error.cause = nullptr;
    error.loss = Loss::Other;
  } else if (evidence != Evidence::Certain) {
    Error plain = lost_error(peers_, error.peer, Loss::ConnectionEnded);
    if (error.loss != Loss::ConnectionEnded) {
      plain.message += " (" + error.what() + ")";
      plain.loss = Loss::Other;
    }
    plain.tensor = std::move(error.tensor);
    error = std::move(plain);
  }
  if (parent_ == rank) cause_finder_.lose_parent();
  report_failure(std::move(error), evidence, now);
}

/// The world cannot go on. The ranks that saw the first failure know it best, so this rank looks
/// for a cause that they left, and sends its evidence up the control tree.
void FailureDetector::report_failure(Error error, Evidence evidence, TimePoint now) {
  if (finishing_) {
    more_failed_ = true;
    return;
  }
  if (phase_.quiet()) return;
  if (error.peer != peers_.self() && !peers_.intact()) {
    // The error is not the other ranks' fault: they have lost this rank.
    error = lost_error(peers_, peers_.self(), Loss::DescriptorsClosed);
    evidence = Evidence::Certain;
  }
  if (const auto cause = peers_.left_cause()) {
    owner_.abort(*cause, std::nullopt);
    return;
  }
  if (error.code == Code::PeerLost && error.tensor.empty()) {
    error.tensor = dispatcher_.under_way(error.peer);
  }
  const bool has_parent = parent_ && *parent_ != error.peer;
  const bool news = cause_finder_.hear(error, evidence, has_parent, now);
  if (news && has_parent) {
    ControlChannel& up = *peers_.channel(*parent_);
    if (!up.post(encode_cause(error, evidence))) cause_finder_.lose_parent();
  }
  decide(now);
}

bool FailureDetector::decide(TimePoint now) {
  if (owner_.orderly_end()) {
    cause_finder_.close();
    return true;
  }
  if (const auto cause = peers_.left_cause()) {
    owner_.abort(*cause, std::nullopt);
    return true;
  }
  const CauseFinder::Finding& best = cause_finder_.best();
  if (best.error.code == Code::PeerLost && best.evidence != Evidence::Certain &&
      peers_.gone(best.error.peer)) {
    Error error = lost_error(peers_, best.error.peer, Loss::ProcessEnded);
    error.tensor = best.error.tensor;
    report_failure(std::move(error), Evidence::Certain, now);
    return true;
  }
  if (parent_ && peers_.gone(*parent_)) cause_finder_.lose_parent();
  if (now < cause_finder_.deadline()) return false;
  Error error = best.error;
  if (error.code == Code::PeerLost && error.loss == Loss::ConnectionEnded &&
      best.evidence == Evidence::Control && peers_.lives(error.peer)) {
    error.loss = Loss::ConnectionsClosed;
    error.message = lost_error(peers_, error.peer, error.loss).message;
  }
  explain(error, best.evidence);
  owner_.abort(error, std::nullopt);
  return true;
}

/// True if the network between two hosts may be to blame, not the rank.
bool FailureDetector::of_a_link(Rank rank, Evidence evidence) const {
  const auto host = [&](Rank of) {
    const auto& hosts = peers_.hosts();
    const auto at = static_cast<std::size_t>(of);
    return at < hosts.size() ? hosts[at] : std::string();
  };
  return evidence == Evidence::Data && host(rank) != host(peers_.self());
}

/// Adds to the error what the lost rank was needed for.
void FailureDetector::explain(Error& error, Evidence evidence) {
  if (error.code != Code::PeerLost || error.peer < 0) return;
  if (of_a_link(error.peer, evidence)) {
    if (!error.tensor.empty()) {
      error.message += ", in the middle of " + error.tensor;
      if (error.missing.empty()) error.missing = {error.peer};
    }
    error.message +=
        ". As far as is known both ranks run. Is the network between their hosts cut, or does a "
        "firewall end connections?";
    return;
  }
  auto [owed, proposed] = owner_.needs(error.peer);
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
  } else if (!proposed.empty()) {  // proposed on the fast path, unknown to the negotiator
    error.message += ", while others waited for it in " + proposed;
    error.tensor = std::move(proposed);
  } else if (phase_.has_ended()) {
    error.message += ", during the shutdown";
  } else {
    error.message += ", while nobody waited for it";
  }
  if (error.missing.empty() && !error.tensor.empty()) error.missing = {error.peer};
  advise_to_look(error.message, "Look at its own output for the reason");
}

}  // namespace farandole

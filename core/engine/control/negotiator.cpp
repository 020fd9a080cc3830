#include "engine/control/negotiator.h"

#include <algorithm>
#include <utility>

#include "engine/base/wording.h"
#include "engine/control/coordinator.h"
#include "engine/control/participant.h"
#include "engine/control/response_cache.h"
#include "engine/control/stream.h"
#include "engine/control/tree_node.h"
#include "engine/control/world.h"

namespace farandole {

bool Effects::empty() const noexcept {
  return sends.empty() && dispatches.empty() && failures.empty() && warnings.empty() &&
         errors.empty() && !joined_last && !shutdown_by && !closed && !fatal;
}

void Effects::clear() noexcept {
  bytes.clear();
  sends.clear();
  dispatches.clear();
  failures.clear();
  warnings.clear();
  errors.clear();
  joined_last.reset();
  dispatches_before_join = 0;
  shutdown_by.reset();
  closed = false;
  fatal.reset();
}

namespace {

/// How long a host keeps a report back until the rest of its ranks has made an equal one. Conflicts
/// and stalls are told as soon where they begin on another host than the coordinator's.
Duration report_patience(const NegotiatorOptions& options) {
  const Duration conflict = options.deadlock_limit() / NegotiatorOptions::kSaySo;
  const Duration stall = options.stall_warning / 2;
  if (conflict <= Duration::zero() || stall <= Duration::zero()) return std::max(conflict, stall);
  return std::min(conflict, stall);
}

}  // namespace

struct Negotiator::State {
  State(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts, Rank self,
        const NegotiatorOptions& options, Timeline* timeline)
      : world(groups, std::move(hosts), self),
        participant(world, cache, options),
        stream(world, cache, participant) {
    if (world.tree().parent) {
      tree_node.emplace(world, cache, report_patience(options));
    } else {
      coordinator.emplace(world, cache, stream, options, timeline);
    }
    for (const auto& ranks : options.process_sets) {
      if (world.check_addition(ranks)) world.add_set(ranks);
    }
    stream.attach(collector());
  }

  [[nodiscard]] Collector& collector() noexcept {
    return coordinator ? static_cast<Collector&>(*coordinator) : *tree_node;
  }

  /// The last step of every call: reports what is due, and decides about what is complete.
  Result<void> finish(TimePoint now, Effects& effects) {
    participant.publish(collector(), now);
    if (coordinator) return coordinator->flush(now, effects);
    tree_node->flush(stream.position(), effects);
    return {};
  }
  /// For calls that involve no message of a peer: an error there would be a bug of the engine.
  void finish_own(TimePoint now, Effects& effects) {
    if (auto done = finish(now, effects); !done) effects.fatal = std::move(done).error();
  }

  World world;
  ResponseCache cache;
  Participant participant;
  Stream stream;
  std::optional<Coordinator> coordinator;  // exactly one of the two
  std::optional<TreeNode> tree_node;
};

Negotiator::Negotiator(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts,
                       Rank self, const NegotiatorOptions& options, Timeline* timeline)
    : state_(std::make_unique<State>(groups, std::move(hosts), self, options, timeline)) {}
Negotiator::~Negotiator() = default;
Negotiator::Negotiator(Negotiator&&) noexcept = default;
Negotiator& Negotiator::operator=(Negotiator&&) noexcept = default;

Result<void> Negotiator::submit_group(std::span<const Key> keys,
                                      std::span<const Signature> signatures,
                                      std::span<const std::uint64_t> tickets, bool waited,
                                      TimePoint now, Effects& effects) {
  auto done = state_->participant.submit(keys, signatures, tickets, waited, now);
  if (done) state_->finish_own(now, effects);
  return done;
}

void Negotiator::mark_waited(std::uint64_t ticket, TimePoint now, Effects& effects) {
  state_->participant.mark_waited(ticket);
  state_->finish_own(now, effects);
}

void Negotiator::mark_left(std::uint64_t ticket, TimePoint now, Effects& effects) {
  state_->participant.mark_left(ticket);
  state_->finish_own(now, effects);
}

void Negotiator::stand_still(bool still, TimePoint now, Effects& effects) {
  state_->participant.stand_still(still);
  state_->finish_own(now, effects);
}

void Negotiator::mark_all_waited(TimePoint now, Effects& effects) {
  state_->participant.mark_all_waited();
  state_->finish_own(now, effects);
}

void Negotiator::mark_demanded(std::span<const std::uint64_t> tickets, TimePoint now,
                               Effects& effects) {
  state_->participant.mark_demanded(tickets);
  state_->finish_own(now, effects);
}

void Negotiator::flush_held(TimePoint now, Effects& effects) {
  state_->participant.flush_held();
  state_->finish_own(now, effects);
}

Result<void> Negotiator::join(std::uint64_t ticket, TimePoint now, Effects& effects) {
  State& state = *state_;
  if (auto joined = state.participant.join(ticket); !joined) return joined;
  state.participant.flush_held();
  state.participant.publish(state.collector(), now);
  // The result is always good: participants join once until all have.
  (void)state.collector().join(state.world.self(), now);
  state.finish_own(now, effects);
  return {};
}

void Negotiator::shutdown(TimePoint now, Effects& effects, wire::Departure why) {
  State& state = *state_;
  why.rank = state.world.self();
  if (state.participant.stopped() || state.participant.leaving()) return;
  state.participant.flush_held();
  state.participant.publish(state.collector(), now);
  state.participant.leave();
  state.collector().leave(why);
  state.finish_own(now, effects);
}

std::optional<Error> Negotiator::departure() const {
  if (!state_->participant.stopped()) return std::nullopt;
  Error error = state_->participant.shut_down();
  const bool counts = error.code == Code::PeerLost || state_->participant.has_failed_operations();
  if (!counts || error.peer == state_->world.self()) return std::nullopt;
  return error;
}

void Negotiator::acknowledge_shutdown(TimePoint now, Effects& effects) {
  state_->collector().acknowledge();
  state_->finish_own(now, effects);
}

Result<void> Negotiator::take(Rank from, std::span<const std::byte> message, TimePoint now,
                              Effects& effects) {
  State& state = *state_;
  if (state.world.tree().parent == from) {
    // Reports that wait for the answer may have ids that this message retires. They will say that
    // it was seen, but whoever gets them reads them before it forgets such ids.
    // Forwarded before it is applied, so that the ranks below do not wait for this one.
    if (!state.world.tree().children.empty()) {
      const std::size_t begin = effects.bytes.size();
      effects.bytes.insert(effects.bytes.end(), message.begin(), message.end());
      for (Rank child : state.world.tree().children) {
        effects.sends.push_back({.to = child, .begin = begin, .end = effects.bytes.size()});
      }
    }
    if (auto done = state.stream.receive(message, now, effects); !done) return done;
  } else if (const auto child = state.world.child_index(from)) {
    if (auto done = state.collector().receive(*child, message, state.stream.position(), now); !done)
      return done;
    state.cache.forget(state.collector().seen(state.stream.position()));
  } else {
    return malformed(state.world, from, "no neighbour in the control tree");
  }
  return {};
}

void Negotiator::answer(TimePoint now, Effects& effects) { state_->finish_own(now, effects); }

void Negotiator::tick(TimePoint now, Effects& effects) {
  State& state = *state_;
  state.participant.tick(state.collector(), state.stream.position(), now);
  if (state.tree_node) state.tree_node->tick(now);
  state.finish_own(now, effects);
  if (state.coordinator) state.coordinator->tick(now, effects);
}

std::optional<TimePoint> Negotiator::next_tick() const {
  auto at = state_->participant.next_tick();
  const auto other =
      state_->coordinator ? state_->coordinator->next_tick() : state_->tree_node->next_tick();
  if (!at || (other && *other < *at)) at = other;
  return at;
}

std::vector<Negotiator::Pending> Negotiator::pending() const {
  std::vector<Pending> all;
  for (const KeyState* key_state : state_->participant.pending_keys()) {
    all.push_back({.name = full_name(key_state->key),
                   .missing = state_->coordinator ? state_->coordinator->missing(*key_state)
                                                  : std::vector<Rank>()});
  }
  return all;
}

std::vector<Negotiator::Pending> Negotiator::owed(Rank rank) const {
  return state_->coordinator ? state_->coordinator->owed(rank) : pending();
}

const ProcessSet* Negotiator::process_set(std::int32_t id) const noexcept {
  return state_->world.find_set(id);
}

std::optional<std::vector<Rank>> Negotiator::towards(std::uint32_t generation) const {
  return state_->world.towards(generation);
}

std::map<std::int32_t, std::vector<Rank>> Negotiator::process_sets() const {
  return state_->world.sets();
}

Key Negotiator::counted_key(Kind kind, const ProcessSet& set) const {
  if (is_set_change(kind)) kind = Kind::AddProcessSet;
  return {.process_set = set.id,
          .generation = set.generation,
          .name = {},
          .kind = kind,
          .number = state_->participant.next_count(set.generation, kind)};
}

std::optional<Negotiator::CachedIds> Negotiator::cached_ids(const Key& key,
                                                            const Signature& signature) const {
  const State& state = *state_;
  CachedIds said;
  if (!key.name.empty()) {
    KeyState* const key_state = state.cache.find(in_full(key, {}));
    if (key_state == nullptr) return std::nullopt;
    said.key = ResponseCache::reference(*key_state, signature.group.name).id;
    if (said.key == 0) return std::nullopt;
    said.exchanges = &key_state->exchanges;
    if (key_state->canonical && key_state->canonical->id != 0 &&
        ResponseCache::fits(*key_state->canonical, signature)) {
      said.signature = key_state->canonical->id;
      return said;
    }
  }
  said.signature = state.cache.id_of(signature);
  return said.signature == 0 ? std::nullopt : std::optional(said);
}

std::uint64_t Negotiator::position(const ProcessSet& set) const noexcept {
  return set.id == 0 ? state_->stream.position() : state_->world.last_position(set);
}

bool Negotiator::resting() const noexcept { return state_->participant.resting(); }

void Negotiator::passed(const Key& key) { state_->participant.count(key); }

std::size_t Negotiator::remembered() const noexcept { return state_->cache.size(); }

}  // namespace farandole

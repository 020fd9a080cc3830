#include "engine/control/negotiator.h"

#include <algorithm>
#include <utility>

#include "engine/base/names.h"
#include "engine/control/caller.h"
#include "engine/control/glossary.h"
#include "engine/control/member.h"
#include "engine/control/node.h"
#include "engine/control/stream.h"
#include "engine/control/world.h"

namespace rueda {

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

struct Negotiator::State {
  State(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts, Rank self,
        const NegotiatorOptions& options, Timeline* timeline)
      : world(groups, std::move(hosts), self),
        member(world, glossary, options),
        stream(world, glossary, member) {
    if (world.tree().parent) {
      node.emplace(world, glossary, options.stall_warning);
    } else {
      caller.emplace(world, glossary, stream, options, timeline);
    }
    for (const auto& ranks : options.process_sets) {
      if (world.check_addition(ranks)) world.add_set(ranks);
    }
    stream.attach(collector());
  }

  [[nodiscard]] Collector& collector() noexcept {
    return caller ? static_cast<Collector&>(*caller) : *node;
  }

  /// Every call ends here: what is due goes out, what is complete comes out.
  Result<void> finish(TimePoint now, Effects& effects) {
    member.publish(collector(), now);
    if (caller) return caller->flush(now, effects);
    node->flush(stream.position(), effects);
    return {};
  }
  /// For calls that concern this rank alone: an error would be a bug of ours.
  void finish_own(TimePoint now, Effects& effects) {
    if (auto done = finish(now, effects); !done) effects.fatal = std::move(done).error();
  }

  World world;
  Glossary glossary;
  Member member;
  Stream stream;
  std::optional<Caller> caller;  // exactly one of the two
  std::optional<Node> node;
};

Negotiator::Negotiator(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts,
                       Rank self, const NegotiatorOptions& options, Timeline* timeline)
    : state_(std::make_unique<State>(groups, std::move(hosts), self, options, timeline)) {}
Negotiator::~Negotiator() = default;
Negotiator::Negotiator(Negotiator&&) noexcept = default;
Negotiator& Negotiator::operator=(Negotiator&&) noexcept = default;

Result<void> Negotiator::submit(const Key& key, const Signature& signature, std::uint64_t ticket,
                                bool waited, TimePoint now, Effects& effects) {
  return submit_group({&key, 1}, {&signature, 1}, {&ticket, 1}, waited, now, effects);
}

Result<void> Negotiator::submit_group(std::span<const Key> keys,
                                      std::span<const Signature> signatures,
                                      std::span<const std::uint64_t> tickets, bool waited,
                                      TimePoint now, Effects& effects) {
  auto done = state_->member.submit(keys, signatures, tickets, waited, now);
  if (done) state_->finish_own(now, effects);
  return done;
}

void Negotiator::want(std::uint64_t ticket, TimePoint now, Effects& effects) {
  state_->member.want(ticket);
  state_->finish_own(now, effects);
}

void Negotiator::want_all(TimePoint now, Effects& effects) {
  state_->member.want_all();
  state_->finish_own(now, effects);
}

void Negotiator::demand(TimePoint now, Effects& effects) {
  state_->member.demand();
  state_->finish_own(now, effects);
}

Result<void> Negotiator::join(std::uint64_t ticket, TimePoint now, Effects& effects) {
  State& state = *state_;
  if (auto joined = state.member.join(ticket); !joined) return joined;
  state.member.demand();
  state.member.publish(state.collector(), now);
  // A rank joins once until all have: its own news cannot be refused.
  (void)state.collector().join(state.world.self(), now);
  state.finish_own(now, effects);
  return {};
}

void Negotiator::shutdown(TimePoint now, Effects& effects, wire::Departure why) {
  State& state = *state_;
  why.rank = state.world.self();
  if (state.member.stopped() || state.member.leaving()) return;
  state.member.demand();
  state.member.publish(state.collector(), now);
  state.member.leave();
  state.collector().leave(why);
  state.finish_own(now, effects);
}

std::optional<Error> Negotiator::departure() const {
  if (!state_->member.stopped()) return std::nullopt;
  Error error = state_->member.shut_down();
  const bool counts = error.code == Code::PeerLost || state_->member.let_down();
  if (!counts || error.peer == state_->world.self()) return std::nullopt;
  return error;
}

void Negotiator::acknowledge_shutdown(TimePoint now, Effects& effects) {
  state_->collector().acknowledge();
  state_->finish_own(now, effects);
}

Result<void> Negotiator::receive(Rank from, std::span<const std::byte> message, TimePoint now,
                                 Effects& effects) {
  State& state = *state_;
  if (state.world.tree().parent == from) {
    // Down the tree first: the ranks below should not wait for what is done here.
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
    state.glossary.forget(state.collector().seen(state.stream.position()));
  } else {
    return nonsense(state.world, from, "no neighbour in the control tree");
  }
  return state.finish(now, effects);
}

void Negotiator::tick(TimePoint now, Effects& effects) {
  State& state = *state_;
  state.member.tick(state.collector(), state.stream.position(), now);
  if (state.node) state.node->tick(now);
  state.finish_own(now, effects);
  if (state.caller) state.caller->tick(now, effects);
}

std::optional<TimePoint> Negotiator::next_tick() const {
  auto at = state_->member.next_tick();
  const auto other = state_->caller ? state_->caller->next_tick() : state_->node->next_tick();
  if (!at || (other && *other < *at)) at = other;
  return at;
}

std::vector<Negotiator::Pending> Negotiator::pending() const {
  std::vector<Pending> all;
  for (const Term* term : state_->member.pending_terms()) {
    all.push_back(
        {.name = full_name(term->key),
         .missing = state_->caller ? state_->caller->missing(*term) : std::vector<Rank>()});
  }
  return all;
}

std::vector<Negotiator::Pending> Negotiator::owed(Rank rank) const {
  return state_->caller ? state_->caller->owed(rank) : pending();
}

const ProcessSet* Negotiator::process_set(std::int32_t id) const noexcept {
  return state_->world.find_set(id);
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
          .number = state_->member.next_count(set.generation, kind)};
}

std::optional<Negotiator::Shorthand> Negotiator::shorthand(const Key& key,
                                                           const Signature& signature) const {
  const State& state = *state_;
  if (!state.member.resting()) return std::nullopt;
  Shorthand said;
  if (!key.name.empty()) {
    const Term* term = state.glossary.find(in_full(key, {}));
    if (term == nullptr) return std::nullopt;
    said.key = Glossary::reference(*term, signature.group.name).number;
    if (said.key == 0) return std::nullopt;
    if (term->meaning && term->meaning->number != 0 && Glossary::fits(*term->meaning, signature)) {
      said.signature = term->meaning->number;
      return said;
    }
  }
  said.signature = state.glossary.number_of(signature);
  return said.signature == 0 ? std::nullopt : std::optional(said);
}

std::uint64_t Negotiator::position() const noexcept { return state_->stream.position(); }

bool Negotiator::resting() const noexcept { return state_->member.resting(); }

void Negotiator::passed(const Key& key) { state_->member.count(key); }

bool Negotiator::busy() const noexcept { return state_->member.pending() != 0; }

std::size_t Negotiator::remembered() const noexcept { return state_->glossary.size(); }

}  // namespace rueda

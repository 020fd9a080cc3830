/// A world of negotiators in one thread: messages wait on their edges (each first in, first out)
/// until the test delivers one of them, time is a number, and everything that comes out is checked
/// against the properties that must hold in every history.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/registry.h"
#include "engine/control/negotiator.h"

namespace farandole::test {

/// What became of a submission.
enum class Outcome : std::uint8_t { Pending, Dispatched, Failed };

struct Submission {
  Key key;
  Signature signature;
  Outcome outcome = Outcome::Pending;
  std::uint64_t dispatch = 0;  ///< number, if dispatched
  std::uint64_t step = 0;      ///< of its rank's calls, in which it came out
  bool absent = false;         ///< it was dispatched as one that no rank brings anything of
  Error error;
};

/// Ranks in groups of random size, or of a given one.
inline std::vector<std::vector<Rank>> make_groups(int size, int per_group) {
  std::vector<std::vector<Rank>> groups;
  for (Rank rank = 0; rank < size; ++rank) {
    if (rank % per_group == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return groups;
}

/// One message alone.
inline Result<void> receive(Negotiator& negotiator, Rank from, std::span<const std::byte> message,
                            TimePoint now, Effects& effects) {
  auto taken = negotiator.take(from, message, now, effects);
  if (taken) negotiator.answer(now, effects);
  return taken;
}

class Simulator {
 public:
  /// Tickets of joins are beyond those of submissions.
  static constexpr std::uint64_t kFirstJoin = std::uint64_t{1} << 40;

  struct RankState {
    std::unique_ptr<Negotiator> negotiator;
    std::map<std::uint64_t, Submission> submissions;  // by ticket
    std::uint64_t last_ticket = 0;
    std::uint64_t last_handle = 0;
    std::vector<std::vector<std::uint64_t>> dispatches;  // tickets by dispatch
    std::vector<std::vector<std::shared_ptr<const Signature>>> signatures;
    std::vector<Rank> joined_last;
    std::uint64_t joins = 0;        ///< so far
    std::uint64_t join_ticket = 0;  ///< of the join in flight
    std::optional<Error> join_error;
    std::vector<std::optional<SetChange>> changes;  // by dispatch
    std::vector<std::uint64_t> numbers;             // by dispatch
    std::optional<Rank> shutdown_by;
    bool acknowledged = false;
    bool closed = false;
    bool alive = true;
    std::uint64_t steps = 0;  // calls into the negotiator
    std::vector<std::string> warnings, errors;
    std::optional<Error> fatal;
  };

  Simulator(std::vector<std::vector<Rank>> groups, const NegotiatorOptions& options,
            std::uint64_t seed)
      : random(seed) {
    int size = 0;
    for (const auto& group : groups) size += static_cast<int>(group.size());
    std::vector<std::string> hosts;
    for (Rank rank = 0; rank < size; ++rank) hosts.push_back("host" + std::to_string(rank % 7));
    for (Rank rank = 0; rank < size; ++rank) {
      ranks.emplace_back();
      ranks.back().negotiator = std::make_unique<Negotiator>(groups, hosts, rank, options);
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  RankState& at(Rank rank) { return ranks[static_cast<std::size_t>(rank)]; }

  /// Ticket of the submission.
  std::uint64_t submit(Rank rank, const Key& key, const Signature& signature, bool waited = false) {
    return submit_group(rank, {key}, {signature}, waited).front();
  }
  std::vector<std::uint64_t> submit_group(Rank rank, const std::vector<Key>& keys,
                                          const std::vector<Signature>& signatures,
                                          bool waited = false) {
    RankState& state = at(rank);
    std::vector<std::uint64_t> tickets;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      tickets.push_back(++state.last_ticket);
      state.submissions[tickets.back()] = {keys[i], signatures[i], Outcome::Pending, 0, 0, false,
                                           {}};
    }
    auto done = state.negotiator->submit_group(keys, signatures, tickets, waited, now, effects);
    if (!done) {
      for (auto ticket : tickets) {
        state.submissions[ticket].outcome = Outcome::Failed;
        state.submissions[ticket].error = done.error();
      }
    }
    drain(rank);
    return tickets;
  }
  template <typename Call>
  void call(Rank rank, Call&& act) {
    act(*at(rank).negotiator, now, effects);
    drain(rank);
  }
  void mark_all_waited(Rank rank) {
    call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.mark_all_waited(t, e); });
  }
  void join(Rank rank) {
    RankState& state = at(rank);
    const std::uint64_t ticket = kFirstJoin + ++state.joins;
    call(rank, [&](Negotiator& n, TimePoint t, Effects& e) {
      const auto joined = n.join(ticket, t, e);
      EXPECT_TRUE(static_cast<bool>(joined)) << joined.error().what();
      state.join_ticket = ticket;
    });
  }
  void shutdown(Rank rank, const wire::Departure& why = {}) {
    call(rank, [&](Negotiator& n, TimePoint t, Effects& e) { n.shutdown(t, e, why); });
  }

  /// The key of a named operation of that set, as this rank knows the set.
  Key key_in(Rank rank, std::int32_t set, std::string name) {
    const ProcessSet* live = at(rank).negotiator->process_set(set);
    return {.process_set = set,
            .generation = live == nullptr ? 0 : live->generation,
            .name = std::move(name),
            .kind = {},
            .number = 0};
  }
  /// A barrier, or a change of sets as described: the next of its kind on this rank.
  std::uint64_t submit_counted(Rank rank, const Signature& signature, std::int32_t set = 0) {
    Negotiator& negotiator = *at(rank).negotiator;
    return submit(rank, negotiator.counted_key(signature.kind, *negotiator.process_set(set)),
                  signature, true);
  }
  std::uint64_t add_set(Rank rank, std::vector<Rank> members) {
    Signature signature;
    signature.kind = Kind::AddProcessSet;
    signature.ranks = std::move(members);
    return submit_counted(rank, signature);
  }
  std::uint64_t remove_set(Rank rank, std::int32_t set) {
    Signature signature;
    signature.kind = Kind::RemoveProcessSet;
    signature.root = set;
    return submit_counted(rank, signature);
  }

  /// Delivers a message of a random edge, and sometimes others that are on their way to the same
  /// rank, which answers them together; false if there is none.
  bool deliver_one() {
    if (busy_edges.empty()) return false;
    auto at_edge = busy_edges.begin();
    std::advance(at_edge, static_cast<std::ptrdiff_t>(pick(busy_edges.size())));
    const Rank to = at_edge->second;
    bool more = true;
    for (auto edge = *at_edge; more; edge = *at_edge) {
      auto& queue = edges[edge];
      const std::vector<std::byte> message = std::move(queue.front());
      queue.pop_front();
      if (queue.empty()) busy_edges.erase(edge);
      if (at(to).alive) take(edge.first, to, message);
      at_edge = std::ranges::find(busy_edges, to, &std::pair<Rank, Rank>::second);
      more = at_edge != busy_edges.end() && chance(together);
    }
    answer(to);
    return true;
  }
  void deliver(Rank from, Rank to, const std::vector<std::byte>& message) {
    if (!at(to).alive) return;
    take(from, to, message);
    answer(to);
  }
  void deliver_all() {
    while (deliver_one()) {
    }
  }
  /// Delivers and lets time pass until nothing is pending before `until`.
  void settle(Duration limit = std::chrono::milliseconds(100)) {
    const TimePoint until = now + limit;
    for (;;) {
      deliver_all();
      std::optional<TimePoint> next;
      for (const RankState& state : ranks) {
        if (!state.alive) continue;
        const auto due = state.negotiator->next_tick();
        if (due && (!next || *due < *next)) next = due;
      }
      if (!next || *next > until) {
        now = until;
        return;
      }
      now = std::max(now, *next);
      tick_all();
    }
  }
  void tick_all() {
    for (Rank rank = 0; rank < size(); ++rank) tick(rank);
  }
  void tick(Rank rank) {
    if (!at(rank).alive) return;
    call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.tick(t, e); });
  }
  void kill(Rank rank) { at(rank).alive = false; }

  /// What must hold at the end of every history; ranks that died are left out.
  void check_order() {
    check_absence();
    // What a dispatch is, by number, as the first rank that ran it knows it.
    std::map<std::uint64_t, std::vector<std::optional<Key>>> keys;
    for (const RankState& state : ranks) {
      for (std::size_t d = 0; d < state.dispatches.size(); ++d) {
        auto& known = keys[state.numbers[d]];
        known.resize(std::max(known.size(), state.dispatches[d].size()));
        ASSERT_EQ(known.size(), state.dispatches[d].size());
        for (std::size_t i = 0; i < known.size(); ++i) {
          const auto ticket = state.dispatches[d][i];
          if (ticket == 0) continue;  // joined: it knows nobody's keys
          const Key& key = state.submissions.at(ticket).key;
          if (!known[i]) known[i] = key;
          ASSERT_EQ(*known[i], key) << "dispatch " << state.numbers[d] << " entry " << i;
          ASSERT_EQ(known[0]->process_set, key.process_set);
        }
        const Signature& first = *state.signatures[d].front();
        std::size_t bytes = 0;
        for (const auto& one : state.signatures[d]) {
          ASSERT_EQ(one->kind, first.kind);
          ASSERT_EQ(one->dtype, first.dtype);
          ASSERT_EQ(one->op, first.op);
          ASSERT_EQ(one->device, first.device);
          ASSERT_EQ(one->absent, first.absent);
          ASSERT_EQ(one->prescale, first.prescale);
          ASSERT_EQ(one->postscale, first.postscale);
          bytes += one->bytes();
        }
        if (state.signatures[d].size() > 1) {
          ASSERT_TRUE(rules_of(first.kind).fusable);
          ASSERT_LE(bytes, fusion_threshold);
        }
      }
    }
  }

  /// Nothing runs exactly where no rank brings anything. A rank that died counts as far as the
  /// coordinator has heard of it, which nobody here knows.
  void check_absence() {
    std::map<std::pair<std::uint64_t, std::size_t>, std::pair<bool, std::set<bool>>> all;
    for (const RankState& state : ranks) {
      if (!state.alive) return;
      for (std::size_t d = 0; d < state.dispatches.size(); ++d) {
        for (std::size_t i = 0; i < state.dispatches[d].size(); ++i) {
          auto& [present, said] = all[{state.numbers[d], i}];
          said.insert(state.signatures[d][i]->absent);
          const auto ticket = state.dispatches[d][i];
          present |= ticket != 0 && !state.submissions.at(ticket).signature.absent;
        }
      }
    }
    for (const auto& [place, one] : all) {
      ASSERT_EQ(one.second, std::set<bool>{!one.first}) << "dispatch " << place.first;
    }
  }

  std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random); }

  std::vector<RankState> ranks;
  TimePoint now{std::chrono::seconds(1000)};
  std::mt19937_64 random;
  std::map<std::pair<Rank, Rank>, std::deque<std::vector<std::byte>>> edges;
  std::set<std::pair<Rank, Rank>> busy_edges;
  double together = 0.4;  ///< how often another message is taken before the answer
  std::uint64_t messages = 0, message_bytes = 0;
  std::size_t fusion_threshold = std::size_t{128} << 20;

 private:
  void take(Rank from, Rank to, const std::vector<std::byte>& message) {
    auto done = at(to).negotiator->take(from, message, now, effects);
    EXPECT_TRUE(done || hostile) << "rank " << to << ": " << done.error().what();
  }
  void answer(Rank rank) {
    if (!at(rank).alive) return;
    at(rank).negotiator->answer(now, effects);
    drain(rank);
  }
  void drain(Rank rank) {
    RankState& state = at(rank);
    ++state.steps;
    for (const Effects::Send& send : effects.sends) {
      const auto begin = effects.bytes.begin();
      edges[{rank, send.to}].emplace_back(begin + static_cast<std::ptrdiff_t>(send.begin),
                                          begin + static_cast<std::ptrdiff_t>(send.end));
      busy_edges.insert({rank, send.to});
      ++messages;
      message_bytes += send.end - send.begin;
    }
    if (hostile) {
      effects.clear();
      return;
    }
    for (const Dispatch& dispatch : effects.dispatches) {
      EXPECT_GT(dispatch.number, state.numbers.empty() ? 0 : state.numbers.back());
      state.numbers.push_back(dispatch.number);
      state.changes.push_back(dispatch.change);
      EXPECT_FALSE(dispatch.entries.empty());
      EXPECT_FALSE(state.shutdown_by) << "a dispatch after the shutdown";
      auto& tickets = state.dispatches.emplace_back();
      auto& signatures = state.signatures.emplace_back();
      for (const DispatchEntry& entry : dispatch.entries) {
        tickets.push_back(entry.ticket);
        signatures.push_back(entry.signature);
        if (entry.ticket == 0) continue;
        Submission& submission = state.submissions.at(entry.ticket);
        EXPECT_EQ(submission.outcome, Outcome::Pending) << full(submission.key);
        submission.outcome = Outcome::Dispatched;
        submission.dispatch = dispatch.number;
        submission.absent = entry.signature->absent;
        submission.step = state.steps;
      }
    }
    for (const Failure& failure : effects.failures) {
      if (failure.ticket == state.join_ticket) {
        state.join_ticket = 0;
        state.join_error = failure.error;
        continue;
      }
      Submission& submission = state.submissions.at(failure.ticket);
      EXPECT_EQ(submission.outcome, Outcome::Pending) << full(submission.key);
      submission.outcome = Outcome::Failed;
      submission.error = failure.error;
      submission.step = state.steps;
    }
    for (auto& text : effects.warnings) state.warnings.push_back(text);
    for (auto& text : effects.errors) state.errors.push_back(text);
    if (effects.joined_last) {
      EXPECT_NE(state.join_ticket, 0U);
      state.join_ticket = 0;
      state.joined_last.push_back(*effects.joined_last);
    }
    if (effects.fatal) state.fatal = effects.fatal;
    if (effects.closed) state.closed = true;
    const bool stopped = effects.shutdown_by.has_value();
    if (stopped) {
      EXPECT_FALSE(state.shutdown_by);
      state.shutdown_by = effects.shutdown_by;
    }
    effects.clear();
    if (stopped && !state.acknowledged && acknowledge_at_once) {
      state.acknowledged = true;
      call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.acknowledge_shutdown(t, e); });
    }
  }
  static std::string full(const Key& key) {
    return key.name.empty() ? std::to_string(key.number) : key.name;
  }

  Effects effects;

 public:
  bool acknowledge_at_once = true;
  bool hostile = false;  ///< messages are forged: nothing is expected but survival
};

/// "tensor." and 3: "tensor.3"
inline std::string numbered(std::string prefix, std::int64_t number) {
  prefix += std::to_string(number);
  return prefix;
}
inline Key named(std::string name) {
  return {.process_set = 0, .generation = 0, .name = std::move(name), .kind = {}, .number = 0};
}
inline Key unnamed(Kind kind, std::uint64_t handle) {
  return {.process_set = 0, .generation = 0, .name = {}, .kind = kind, .number = handle};
}
inline Signature signature(Kind kind, Shape shape, DType dtype = DType::Float32,
                           ReduceOp op = ReduceOp::Sum) {
  Signature result;
  result.kind = kind;
  result.dtype = dtype;
  result.op = op;
  result.shape = std::move(shape);
  if (kind == Kind::Broadcast) result.root = 0;
  return result;
}

inline std::vector<std::vector<Rank>> random_groups(Simulator& source, int size) {
  std::vector<std::vector<Rank>> groups;
  for (Rank rank = 0; rank < size;) {
    const auto members = static_cast<Rank>(1 + source.pick(8));
    auto& group = groups.emplace_back();
    for (Rank last = std::min<Rank>(rank + members, size); rank < last; ++rank)
      group.push_back(rank);
  }
  return groups;
}

inline NegotiatorOptions random_options(Simulator& source) {
  NegotiatorOptions options;
  constexpr std::array<std::size_t, 4> thresholds{0, 300, 2000, std::size_t{128} << 20};
  options.fusion_threshold_bytes = thresholds[source.pick(thresholds.size())];
  options.batch_bytes = source.chance(0.5) ? 200 : 1 << 20;
  constexpr std::array<std::size_t, 5> capacities{0, 1, 3, 20, 16384};
  options.key_capacity = capacities[source.pick(capacities.size())];
  options.disable_group_fusion = source.chance(0.2);
  options.stall_warning =
      source.chance(0.5) ? std::chrono::milliseconds(40) : std::chrono::seconds(60);
  return options;
}

}  // namespace farandole::test

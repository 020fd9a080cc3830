/// A world of negotiators in one thread: messages wait on their edges (each first in, first out)
/// until the test delivers one of them, time is a number, and everything that comes out is checked
/// against the properties that must hold in every history.
#pragma once

#include <gtest/gtest.h>

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
#include "engine/negotiator.h"

namespace rueda::test {

/// What became of a submission.
enum class Outcome : std::uint8_t { Pending, Dispatched, Failed };

struct Submission {
  Key key;
  Signature signature;
  Outcome outcome = Outcome::Pending;
  std::uint64_t dispatch = 0;  ///< number, if dispatched
  std::uint64_t step = 0;      ///< of its rank's calls, in which it came out
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

class Simulator {
 public:
  struct RankState {
    std::unique_ptr<Negotiator> negotiator;
    std::map<std::uint64_t, Submission> submissions;  // by ticket
    std::uint64_t last_ticket = 0;
    std::uint64_t last_handle = 0;
    std::vector<std::vector<std::uint64_t>> dispatches;  // tickets by dispatch
    std::vector<std::vector<std::shared_ptr<const Signature>>> signatures;
    std::vector<Rank> joined_last;
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
      state.submissions[tickets.back()] = {keys[i], signatures[i], Outcome::Pending, 0, 0, {}};
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
  void want_all(Rank rank) {
    call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.want_all(t, e); });
  }
  void join(Rank rank) {
    call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.join(t, e); });
  }
  void shutdown(Rank rank) {
    call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.shutdown(t, e); });
  }

  /// Delivers one message of a random edge; false if there is none.
  bool deliver_one() {
    if (busy_edges.empty()) return false;
    auto at_edge = busy_edges.begin();
    std::advance(at_edge, static_cast<std::ptrdiff_t>(pick(busy_edges.size())));
    const auto edge = *at_edge;
    auto& queue = edges[edge];
    const std::vector<std::byte> message = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) busy_edges.erase(edge);
    deliver(edge.first, edge.second, message);
    return true;
  }
  void deliver(Rank from, Rank to, const std::vector<std::byte>& message) {
    if (!at(to).alive) return;
    auto done = at(to).negotiator->receive(from, message, now, effects);
    EXPECT_TRUE(done || hostile) << "rank " << to << ": " << done.error().what();
    drain(to);
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
    const RankState* longest = &ranks.front();
    for (const RankState& state : ranks) {
      if (state.dispatches.size() > longest->dispatches.size()) longest = &state;
    }
    // Every rank ran the same operations in the same order (one that joined knows its own only).
    for (const RankState& state : ranks) {
      for (std::size_t d = 0; d < state.dispatches.size(); ++d) {
        ASSERT_EQ(state.dispatches[d].size(), longest->dispatches[d].size());
        for (std::size_t i = 0; i < state.dispatches[d].size(); ++i) {
          const auto mine = state.dispatches[d][i];
          const auto others = longest->dispatches[d][i];
          if (mine == 0 || others == 0) continue;
          ASSERT_EQ(state.submissions.at(mine).key, longest->submissions.at(others).key)
              << "dispatch " << d + 1 << " entry " << i;
        }
        const Signature& first = *state.signatures[d].front();
        std::size_t bytes = 0;
        for (const auto& one : state.signatures[d]) {
          ASSERT_EQ(one->kind, first.kind);
          ASSERT_EQ(one->dtype, first.dtype);
          ASSERT_EQ(one->op, first.op);
          ASSERT_EQ(one->device, first.device);
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

  std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random); }

  std::vector<RankState> ranks;
  TimePoint now{std::chrono::seconds(1000)};
  std::mt19937_64 random;
  std::map<std::pair<Rank, Rank>, std::deque<std::vector<std::byte>>> edges;
  std::set<std::pair<Rank, Rank>> busy_edges;
  std::uint64_t messages = 0, message_bytes = 0;
  std::size_t fusion_threshold = std::size_t{128} << 20;

 private:
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
      EXPECT_EQ(dispatch.number, state.dispatches.size() + 1);
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
        submission.step = state.steps;
      }
    }
    for (const Failure& failure : effects.failures) {
      Submission& submission = state.submissions.at(failure.ticket);
      EXPECT_EQ(submission.outcome, Outcome::Pending) << full(submission.key);
      submission.outcome = Outcome::Failed;
      submission.error = failure.error;
      submission.step = state.steps;
    }
    for (auto& text : effects.warnings) state.warnings.push_back(text);
    for (auto& text : effects.errors) state.errors.push_back(text);
    if (effects.joined_last) state.joined_last.push_back(*effects.joined_last);
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

}  // namespace rueda::test

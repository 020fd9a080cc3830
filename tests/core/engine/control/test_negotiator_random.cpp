/// What must hold in every history: random worlds, orders, timings, disagreements, joins,
/// shutdowns, deaths and hostile bytes. Each seed is one history; a failure names it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "simulator.h"

namespace farandole::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// One grouped or single submission that all ranks are to make.
struct Work {
  std::vector<Key> keys;
  std::vector<Signature> signatures;
  Rank differs = -1;  ///< this rank says something else about the first of them
  Signature other;
  /// By signature, of 8 ranks so many bring nothing, if it may be; `salt` says which.
  std::vector<std::size_t> absence = {};
  std::size_t salt = 0;
};

/// Of most operations all ranks bring something, of a few none does.
void draw_absence(Simulator& sim, Work& work) {
  constexpr std::array<std::size_t, 8> eighths{0, 0, 0, 0, 1, 4, 7, 8};
  work.salt = sim.pick(1024);
  for (std::size_t i = 0; i < work.keys.size(); ++i) {
    work.absence.push_back(eighths[sim.pick(eighths.size())]);
  }
}

bool brings_nothing(const Work& work, Rank rank, std::size_t i) {
  const std::size_t drawn =
      (static_cast<std::size_t>(rank) * 2654435761U ^ work.salt * 40503U) >> 7;
  return may_be_absent(work.signatures[i].kind) && (drawn + i) % 8 < work.absence[i];
}

Signature random_signature(Simulator& sim, bool allreduce_only = false) {
  constexpr std::array kinds{Kind::Allreduce, Kind::Allreduce, Kind::Allreduce, Kind::Allgather,
                             Kind::Broadcast};
  const Kind kind = allreduce_only ? Kind::Allreduce : kinds[sim.pick(kinds.size())];
  Signature result = signature(kind, {static_cast<std::int64_t>(1 + sim.pick(3)), 8});
  if (sim.chance(0.3)) result.dtype = DType::Float16;
  if (kind == Kind::Allreduce && sim.chance(0.2)) result.op = ReduceOp::Max;
  if (kind == Kind::Allreduce && sim.chance(0.2)) result.prescale = 0.5;
  return result;
}

/// Something that all ranks with `one` must disagree with.
Signature disagreeing(Simulator& sim, const Signature& one) {
  Signature other = one;
  switch (sim.pick(7)) {
    case 0:
      other.dtype = DType::Int64;
      break;
    case 1:
      other.shape.push_back(3);
      break;
    case 2:
      other.kind = one.kind == Kind::Broadcast ? Kind::Allreduce : Kind::Broadcast;
      break;
    case 3:
      other.device = Device::Cuda;
      break;
    case 4:
      if (one.kind == Kind::Allreduce) {
        other.op = one.op == ReduceOp::Min ? ReduceOp::Sum : ReduceOp::Min;
      } else if (one.kind == Kind::Broadcast) {
        other.root = one.root + 1;
      } else {
        other.shape[1] += 1;
      }
      break;
    case 5:
      other.group.size = one.group.size + 1;
      if (other.group.name.empty()) other.group.name = "some.group";
      break;
    default:
      if (one.kind == Kind::Allreduce) {
        other.postscale = 3.0;
      } else {
        other.shape = {};
        other.dtype = DType::Float64;
      }
  }
  return other;
}

std::string outcome_of(const Submission& submission) {
  if (submission.outcome == Outcome::Pending) return "pending";
  if (submission.absent) return "dispatched, absent";
  if (submission.outcome == Outcome::Dispatched) return "dispatched";
  return submission.error.tensor + ": " + submission.error.message;
}

std::vector<Work> random_step(Simulator& sim, int step, bool disagreements, bool allreduce_only) {
  std::vector<Work> all;
  const std::size_t singles = 1 + sim.pick(8);
  for (std::size_t i = 0; i < singles; ++i) {
    // Some names come in every step, some only in this one.
    const std::string name = numbered("tensor.", sim.chance(0.7) ? 0 : step) + numbered(".", i);
    all.push_back({{named(name)}, {random_signature(sim, allreduce_only)}, -1, {}});
  }
  for (std::size_t g = 0; g < sim.pick(3); ++g) {
    const bool noname = sim.chance(0.3);
    const std::string name =
        "group." + (noname ? numbered("noname.", step) : std::string()) + std::to_string(g);
    Work work;
    const std::size_t size = 1 + sim.pick(4);
    for (std::size_t i = 0; i < size; ++i) {
      work.keys.push_back(named(name + "_" + std::to_string(i + 1) + numbered("of", size)));
      work.signatures.push_back(random_signature(sim, allreduce_only));
      work.signatures.back().group = {name, static_cast<std::uint32_t>(size)};
    }
    all.push_back(std::move(work));
  }
  for (Work& work : all) draw_absence(sim, work);
  if (disagreements) {
    for (Work& work : all) {
      if (sim.size() < 2 || !sim.chance(0.25)) continue;
      work.differs = static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size())));
      work.other = disagreeing(sim, work.signatures.front());
    }
  }
  return all;
}

/// Unnamed operations are part of the order of calls, the others are not.
void submit(Simulator& sim, Rank rank, const Work& work, bool waited) {
  auto signatures = work.signatures;
  if (rank == work.differs) signatures.front() = work.other;
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    signatures[i].absent = may_be_absent(signatures[i].kind) && brings_nothing(work, rank, i);
  }
  for (Signature& one : signatures) {
    if (one.kind == Kind::Allgather && !one.shape.empty()) one.shape[0] += rank % 3;
  }
  sim.submit_group(rank, work.keys, signatures, waited);
}

/// Submits all work on all ranks, each in an order of its own, messages in between.
void run_step(Simulator& sim, const std::vector<Work>& all, const std::vector<Rank>& ranks) {
  std::map<Rank, std::vector<std::size_t>> left;
  std::uint64_t handle = 0;
  for (Rank rank : ranks) {
    auto& order = left[rank];
    order.resize(all.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, sim.random);
    handle = std::max(handle, sim.at(rank).last_handle);
  }
  const std::size_t unnamed_ones = sim.pick(3);
  for (Rank rank : ranks) sim.at(rank).last_handle = handle;
  std::vector<Rank> busy = ranks;
  while (!busy.empty()) {
    if (sim.chance(0.3)) sim.deliver_one();
    if (sim.chance(0.05)) {
      sim.now += microseconds(300);
      sim.tick(static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size()))));
    }
    const std::size_t i = sim.pick(busy.size());
    const Rank rank = busy[i];
    auto& order = left[rank];
    if (order.empty()) {
      for (std::size_t u = 0; u < unnamed_ones; ++u) {
        sim.submit(rank, unnamed(Kind::Allreduce, ++sim.at(rank).last_handle),
                   signature(Kind::Allreduce, {4}), sim.chance(0.5));
      }
      if (sim.chance(0.5)) sim.mark_all_waited(rank);
      busy.erase(busy.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    submit(sim, rank, all[order.back()], sim.chance(0.3));
    order.pop_back();
  }
}

void expect_all_done(Simulator& sim) {
  for (Rank rank = 0; rank < sim.size(); ++rank) {
    for (const auto& [ticket, submission] : sim.at(rank).submissions) {
      ASSERT_NE(submission.outcome, Outcome::Pending)
          << "rank " << rank << " ticket " << ticket << " " << submission.key.name;
    }
    ASSERT_TRUE(sim.at(rank).negotiator->pending().empty());
    ASSERT_FALSE(sim.at(rank).fatal) << sim.at(rank).fatal->message;
  }
}

/// What became of each key, by name, in the order of its uses; must be equal on all ranks.
using Results = std::map<std::string, std::vector<std::string>>;
Results results_of(Simulator& sim, Rank rank) {
  Results results;
  for (const auto& [ticket, submission] : sim.at(rank).submissions) {
    const Key& key = submission.key;
    results[key.name.empty() ? "#" + std::to_string(key.number) : key.name].push_back(
        outcome_of(submission));
  }
  return results;
}

void expect_same_results(Simulator& sim) {
  const Results first = results_of(sim, 0);
  for (Rank rank = 1; rank < sim.size(); ++rank) ASSERT_EQ(results_of(sim, rank), first);
}

/// The members of a group come out in one call, and their fate is the same.
void expect_groups_together(Simulator& sim) {
  for (const auto& state : sim.ranks) {
    std::map<std::string, std::set<std::pair<Outcome, std::uint64_t>>> groups;
    std::map<std::string, int> uses;
    for (const auto& [ticket, submission] : state.submissions) {
      if (submission.signature.group.name.empty()) continue;
      const std::string use = numbered("#", ++uses[submission.key.name]);
      const Group& group = submission.signature.group;
      groups[group.name + numbered("/", group.size) + use].insert(
          {submission.outcome, submission.step});
    }
    for (const auto& [group, fates] : groups) ASSERT_EQ(fates.size(), 1U) << group;
  }
}

class RandomHistory : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] Simulator make(int max_size, NegotiatorOptions* used = nullptr) {
    Simulator source({{0}}, {}, static_cast<std::uint64_t>(GetParam()) * 7919 + 13);
    const int size = 1 + static_cast<int>(source.pick(static_cast<std::size_t>(max_size)));
    const NegotiatorOptions options = random_options(source);
    if (used != nullptr) *used = options;
    Simulator sim(random_groups(source, size), options, static_cast<std::uint64_t>(GetParam()));
    sim.fusion_threshold = options.fusion_threshold_bytes;
    return sim;
  }
  static std::vector<Rank> all_ranks(Simulator& sim) {
    std::vector<Rank> ranks(static_cast<std::size_t>(sim.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
};

TEST_P(RandomHistory, agreeing_ranks_run_everything_in_one_order) {
  auto sim = make(64);
  for (int step = 1; step <= 6; ++step) {
    run_step(sim, random_step(sim, step, false, false), all_ranks(sim));
    sim.settle();
    expect_all_done(sim);
    if (HasFatalFailure()) return;
  }
  for (const auto& state : sim.ranks) {
    for (const auto& [ticket, submission] : state.submissions) {
      ASSERT_EQ(submission.outcome, Outcome::Dispatched)
          << submission.key.name << ": " << submission.error.message;
    }
  }
  sim.check_order();
  expect_groups_together(sim);
}

TEST_P(RandomHistory, disagreement_is_the_same_error_on_every_rank) {
  auto sim = make(40);
  for (int step = 1; step <= 6; ++step) {
    const auto all = random_step(sim, step, true, false);
    std::map<Rank, std::uint64_t> before;
    for (Rank rank = 0; rank < sim.size(); ++rank) before[rank] = sim.at(rank).last_ticket;
    run_step(sim, all, all_ranks(sim));
    sim.settle();
    // A group that disagrees about being a group leaves its other members incomplete: no such here,
    // because groups with that disagreement have one member or are checked below.
    for (const Work& work : all) {
      if (work.differs < 0 || work.differs >= sim.size()) continue;
      for (const auto& [ticket, submission] : sim.at(0).submissions) {
        if (ticket <= before[0] || !(submission.key == work.keys.front())) continue;
        EXPECT_EQ(submission.outcome, Outcome::Failed) << submission.key.name;
        EXPECT_EQ(submission.error.code, Code::Mismatch);
        EXPECT_FALSE(submission.error.message.empty());
      }
    }
    bool regrouped = false;
    for (const Work& work : all) {
      regrouped |= work.differs >= 0 && work.keys.size() > 1 &&
                   work.other.group.size != work.signatures.front().group.size;
    }
    if (regrouped) return;  // the rest of such a group waits for ever, as documented
    expect_all_done(sim);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  expect_same_results(sim);
  sim.check_order();
}

TEST_P(RandomHistory, joins_in_any_order_let_the_others_go_on) {
  auto sim = make(24);
  for (int round = 1; round <= 3; ++round) {
    std::vector<Rank> live = all_ranks(sim);
    while (!live.empty()) {
      // Ranks that are about to join may leave something behind that all others submit too.
      const auto all = random_step(sim, round, false, sim.chance(0.7));
      run_step(sim, all, live);
      if (sim.chance(0.5)) sim.settle();
      std::ranges::shuffle(live, sim.random);
      const std::size_t joining = 1 + sim.pick(live.size());
      for (std::size_t i = 0; i < joining; ++i) {
        sim.join(live.back());
        live.pop_back();
        if (sim.chance(0.5)) sim.deliver_one();
      }
      sim.settle();
      expect_all_done(sim);
      if (HasFatalFailure()) return;
    }
    for (const auto& state : sim.ranks) {
      ASSERT_EQ(state.joined_last.size(), static_cast<std::size_t>(round));
      ASSERT_EQ(state.joined_last, sim.ranks.front().joined_last);
    }
    // Handles of ranks that did not take part in the last steps are behind.
    std::uint64_t handle = 0;
    for (const auto& state : sim.ranks) handle = std::max(handle, state.last_handle);
    for (auto& state : sim.ranks) state.last_handle = handle;
  }
  sim.check_order();
}

TEST_P(RandomHistory, shutdown_at_any_time_ends_everything) {
  auto sim = make(32);
  sim.acknowledge_at_once = true;
  for (int step = 1; step <= 2; ++step) {
    run_step(sim, random_step(sim, step, false, false), all_ranks(sim));
  }
  const auto leaver = static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size())));
  for (std::size_t i = sim.pick(40); i > 0; --i) sim.deliver_one();
  sim.shutdown(leaver);
  if (sim.chance(0.3))
    sim.shutdown(static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size()))));
  run_step(sim, random_step(sim, 3, false, false), all_ranks(sim));
  sim.settle();
  expect_all_done(sim);
  for (const auto& state : sim.ranks) {
    ASSERT_TRUE(state.shutdown_by);
    ASSERT_EQ(state.shutdown_by, sim.ranks.front().shutdown_by);
    ASSERT_TRUE(state.closed);
    ASSERT_EQ(state.dispatches.size(), sim.ranks.front().dispatches.size());
  }
  sim.check_order();
}

TEST_P(RandomHistory, a_death_at_any_message_leaves_the_others_in_one_order) {
  auto sim = make(32);
  const std::size_t when = sim.pick(200);
  const auto victim = static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size())));
  run_step(sim, random_step(sim, 1, false, false), all_ranks(sim));
  for (std::size_t i = 0; i < when; ++i) sim.deliver_one();
  sim.kill(victim);
  std::vector<Rank> rest = all_ranks(sim);
  std::erase(rest, victim);
  run_step(sim, random_step(sim, 2, true, false), rest);
  sim.settle();
  if (!rest.empty()) sim.shutdown(rest.front());
  sim.settle();
  sim.check_order();
}

TEST_P(RandomHistory, other_timings_change_nothing_but_batches) {
  std::vector<Results> results;
  for (int timing = 0; timing < 3; ++timing) {
    auto sim = make(12);
    std::vector<std::vector<Work>> steps;
    for (int step = 1; step <= 4; ++step) {
      auto all = random_step(sim, step, true, false);
      for (Work& work : all) {
        if (work.keys.size() > 1 && work.differs >= 0 &&
            work.other.group.size != work.signatures.front().group.size) {
          work.differs = -1;
        }
      }
      steps.push_back(std::move(all));
    }
    // From here on the histories differ.
    sim.random.seed(static_cast<std::uint64_t>(GetParam() * 3 + timing));
    for (const auto& all : steps) {
      run_step(sim, all, all_ranks(sim));
      sim.settle();
    }
    expect_all_done(sim);
    expect_same_results(sim);
    Results named_only;
    for (const auto& [name, outcomes] : results_of(sim, 0)) {
      if (name.front() != '#') named_only[name] = outcomes;
    }
    results.push_back(std::move(named_only));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(RandomHistory, hostile_bytes_do_no_harm) {
  auto sim = make(12);
  sim.hostile = true;
  Effects effects;
  for (int step = 1; step <= 3; ++step) {
    run_step(sim, random_step(sim, step, true, false), all_ranks(sim));
    for (int i = 0; i < 60 && !sim.busy_edges.empty(); ++i) {
      auto at_edge = sim.busy_edges.begin();
      std::advance(at_edge, static_cast<std::ptrdiff_t>(sim.pick(sim.busy_edges.size())));
      const auto [from, to] = *at_edge;
      auto bytes = sim.edges[{from, to}].front();
      for (std::size_t flips = 1 + sim.pick(3); flips > 0; --flips) {
        bytes[sim.chance(0.1) ? sim.pick(16) : sim.pick(bytes.size())] =
            static_cast<std::byte>(sim.chance(0.5) ? sim.pick(12) : sim.pick(256));
      }
      if (sim.chance(0.1)) bytes.resize(sim.pick(bytes.size() + 1));
      (void)receive(*sim.at(to).negotiator, from, bytes, sim.now, effects);
      effects.clear();
      sim.at(to).negotiator->tick(sim.now, effects);
      effects.clear();
      if (sim.chance(0.5)) {
        // Sometimes the true message follows; what comes of it no longer matters.
        const auto message = sim.edges[{from, to}].front();
        sim.edges[{from, to}].pop_front();
        if (sim.edges[{from, to}].empty()) sim.busy_edges.erase({from, to});
        (void)receive(*sim.at(to).negotiator, from, message, sim.now, effects);
        for (const Effects::Send& send : effects.sends) {
          sim.edges[{to, send.to}].emplace_back(
              effects.bytes.begin() + static_cast<std::ptrdiff_t>(send.begin),
              effects.bytes.begin() + static_cast<std::ptrdiff_t>(send.end));
          sim.busy_edges.insert({to, send.to});
        }
        effects.clear();
      }
    }
    sim.edges.clear();
    sim.busy_edges.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHistory, testing::Range(0, 60));

TEST(LargeWorld, a_thousand_ranks_in_a_deep_tree_agree) {
  NegotiatorOptions options;
  Simulator sim(make_groups(1100, 1), options, 5);
  std::vector<Rank> ranks(1100);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int step = 0; step < 3; ++step) {
    for (Rank rank : ranks) {
      for (int i = 0; i < 5; ++i) {
        sim.submit(rank, named(numbered("t", i)), signature(Kind::Allreduce, {i + 1}));
      }
      sim.mark_all_waited(rank);
    }
    sim.deliver_all();
  }
  for (Rank rank : ranks)
    sim.submit(rank, named("t0"), signature(Kind::Allreduce, {rank == 1099 ? 2 : 1}), true);
  sim.deliver_all();
  expect_all_done(sim);
  sim.check_order();
  EXPECT_EQ(sim.at(77).submissions.rbegin()->second.error.code, Code::Mismatch);
  for (Rank rank : ranks) sim.join(rank);
  sim.settle();
  EXPECT_EQ(sim.at(500).joined_last.size(), 1U);
}

}  // namespace
}  // namespace farandole::test

/// What the coordinator says and does when ranks are late.

#include <gtest/gtest.h>

#include "engine/control/stall.h"
#include "negotiator_world.h"

namespace farandole::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

NegotiatorOptions stall_options(int warning_s, int shutdown_s = 0) {
  NegotiatorOptions options;
  options.stall_warning = seconds(warning_s);
  options.stall_shutdown = seconds(shutdown_s);
  options.deadlock = seconds(warning_s);
  return options;
}

void stand_still(Simulator& sim, Rank rank, bool still) {
  sim.call(rank, [&](Negotiator& n, TimePoint t, Effects& e) { n.stand_still(still, t, e); });
}

TEST(StallMonitor, lists_at_most_six_names_per_rank) {
  StallMonitor monitor(seconds(10), seconds(0));
  const TimePoint start{seconds(100)};
  std::vector<Waiting> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back({numbered("t", i), start, {1, 3}});
  const auto report = monitor.check(start + seconds(11), waiting);
  ASSERT_TRUE(report);
  EXPECT_TRUE(contains(report->text, "waiting for remainder of ranks for more than 10 seconds"));
  EXPECT_TRUE(contains(report->text, "Missing ranks:\n1: [t0, t1, t2, t3, t4, t5 ...]\n3: ["));
  EXPECT_FALSE(report->fatal);
  waiting.resize(6);
  const auto all = monitor.check(start + seconds(22), waiting);
  ASSERT_TRUE(all);
  EXPECT_TRUE(contains(all->text, "\n1: [t0, t1, t2, t3, t4, t5]\n3: [")) << all->text;
}

TEST(StallMonitor, of_several_past_the_shutdown_time_the_first_is_the_cause) {
  StallMonitor monitor(seconds(10), seconds(10));  // the shortest there is
  const TimePoint start{seconds(100)};
  // What nobody is missing for is no cause.
  const std::vector<Waiting> waiting{{"whole", start, {}}, {"a", start, {2, 4}}, {"b", start, {5}}};
  const auto report = monitor.check(start + seconds(10), waiting);
  ASSERT_TRUE(report && report->fatal);
  EXPECT_EQ(report->fatal->tensor, "a");
  EXPECT_EQ(report->fatal->missing, (std::vector<Rank>{2, 4}));
  EXPECT_EQ(report->fatal->peer, 2);
}

TEST(StallMonitor, names_at_most_six_ranks) {
  StallMonitor monitor(seconds(10), seconds(10));
  const TimePoint start{seconds(100)};
  const auto told = [&](std::vector<Rank> missing) {
    const std::vector<Waiting> waiting{{"a", start, std::move(missing)}};
    return monitor.check(start + seconds(10), waiting)->fatal->message;
  };
  EXPECT_TRUE(contains(told({0, 1, 2, 3, 4, 5}), "rank 4, rank 5 (HOROVOD")) << "all of six";
  EXPECT_TRUE(contains(told({0, 1, 2, 3, 4, 5, 6, 7}), "rank 4, rank 5 and 2 more (HOROVOD"));
}

TEST(StallMonitor, speaks_once_per_interval_and_marks_what_is_past_the_shutdown_time) {
  StallMonitor monitor(seconds(10), seconds(25));
  const TimePoint start{seconds(100)};
  const std::vector<Waiting> waiting{{"a", start, {2}}, {"b", start + seconds(10), {5}}};
  EXPECT_FALSE(monitor.check(start + seconds(9), waiting));
  EXPECT_EQ(monitor.due(start), start + seconds(10));
  ASSERT_TRUE(monitor.check(start + seconds(10), waiting));
  EXPECT_EQ(monitor.due(start), start + seconds(20));
  ASSERT_TRUE(monitor.check(start + seconds(20), waiting));
  EXPECT_EQ(monitor.due(start), start + seconds(25));
  const auto last = monitor.check(start + seconds(25), waiting);
  ASSERT_TRUE(last && last->fatal);
  EXPECT_TRUE(contains(last->text, "\n2!: [a]\n5: [b]\n") &&
              last->text.ends_with("\nWill shutdown"))
      << last->text;
  EXPECT_EQ(last->fatal->code, Code::Timeout);
  EXPECT_EQ(last->fatal->missing, std::vector<Rank>{2});
  EXPECT_EQ(last->fatal->tensor, "a");
  EXPECT_DOUBLE_EQ(last->fatal->waited_s, 25.0);
  EXPECT_EQ(monitor.due(start), start + seconds(35)) << "what has been said is not due at once";
}

TEST(Stall, names_the_missing_ranks_below_inner_nodes) {
  Simulator sim(make_groups(12, 4), stall_options(60), 1);
  for (Rank rank = 0; rank < 12; ++rank) {
    if (rank == 6 || rank == 9) continue;
    sim.submit(rank, named("allreduce.a"), kFloats, true);
  }
  sim.settle(seconds(61));
  ASSERT_EQ(sim.at(0).warnings.size(), 1U);
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "\n6: [allreduce.a]\n9: [allreduce.a]"))
      << sim.at(0).warnings[0];
  EXPECT_FALSE(contains(sim.at(0).warnings[0], "\n5:"));
  for (Rank rank : {6, 9}) sim.submit(rank, named("allreduce.a"), kFloats, true);
  sim.settle(seconds(1));
  EXPECT_EQ(sim.at(11).dispatches.size(), 1U);
  EXPECT_FALSE(sim.at(0).fatal);
  for (auto& state : sim.ranks) EXPECT_FALSE(state.negotiator->next_tick());
}

TEST(Stall, counts_from_the_report_even_if_a_node_held_it) {
  Simulator sim(make_groups(6, 3), stall_options(60), 1);
  sim.submit(4, named("allreduce.a"), kFloats,
             true);  // only the node, rank 3, hears of it at first
  sim.settle(milliseconds(59900));
  EXPECT_TRUE(sim.at(0).warnings.empty());
  sim.settle(milliseconds(200));
  EXPECT_EQ(sim.at(0).warnings.size(), 1U);
}

TEST(Stall, counts_from_the_oldest_report_of_all) {
  for (const bool same : {true, false}) {
    Simulator sim(make_groups(6, 3), stall_options(60), 1);
    sim.submit(4, named("allreduce.a"), kFloats);  // nobody waits: its node holds this for 30 s
    sim.settle(seconds(10));
    sim.submit(0, named(same ? "allreduce.a" : "allreduce.b"), kFloats, true);
    sim.settle(milliseconds(49'900));
    EXPECT_TRUE(sim.at(0).warnings.empty());
    sim.settle(milliseconds(200));
    ASSERT_EQ(sim.at(0).warnings.size(), 1U) << same;
    EXPECT_TRUE(contains(sim.at(0).warnings[0], "\n1: [allreduce.a]")) << sim.at(0).warnings[0];
  }
}

TEST(Stall, ends_the_world_after_the_shutdown_time) {
  Simulator sim(make_groups(3, 3), stall_options(10, 20), 1);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.settle(seconds(21));
  EXPECT_EQ(sim.at(0).warnings.size(), 1U);
  ASSERT_EQ(sim.at(0).errors.size(), 1U);
  EXPECT_TRUE(contains(sim.at(0).errors[0], "1!: [allreduce.a]\n2!: [allreduce.a]\n"));
  ASSERT_TRUE(sim.at(0).fatal);
  EXPECT_EQ(sim.at(0).fatal->code, Code::Timeout);
  EXPECT_EQ(sim.at(0).fatal->missing, (std::vector<Rank>{1, 2}));
  EXPECT_TRUE(contains(sim.at(0).fatal->message,
                       "within 20 s; waiting for rank 1 on host host1, rank 2 on host host2"));
  const std::string question =
      "all ranks must call it. Is it inside `if hvd.rank() == 0:`? An operation of some ranks only "
      "needs a process set";
  EXPECT_TRUE(contains(sim.at(0).fatal->message, question)) << sim.at(0).fatal->message;
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "of allreduce.a: " + question));
  EXPECT_FALSE(sim.at(0).negotiator->next_tick()) << "said once";
}

TEST(Stall, asks_for_the_condition_that_fits) {
  const auto asked = [](const std::vector<Rank>& some) {
    Simulator sim(make_groups(4, 4), stall_options(10), 1);
    for (const Rank rank : some) sim.submit(rank, named("allreduce.a"), kFloats, true);
    sim.settle(seconds(11));
    return sim.at(0).warnings.at(0);
  };
  EXPECT_TRUE(contains(asked({2}), "Is it inside `if hvd.rank() == 2:`?"));
  EXPECT_TRUE(contains(asked({1, 2, 3}), "Is it inside `if hvd.rank() != 0:`?"));
  EXPECT_TRUE(contains(asked({1, 3}), "Is it inside an `if` that depends on hvd.rank()?"));
}

TEST(Stall, can_be_switched_off) {
  Simulator sim(make_groups(4, 2), stall_options(0, 30), 1);
  sim.submit(3, named("allreduce.a"), kFloats, true);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  for (auto& state : sim.ranks) EXPECT_FALSE(state.negotiator->next_tick());
}

TEST(Stall, joined_ranks_are_not_missing) {
  Simulator sim(make_groups(3, 3), stall_options(60), 1);
  sim.join(1);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.settle(seconds(61));
  ASSERT_EQ(sim.at(0).warnings.size(), 1U);
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "Missing ranks:\n2: [allreduce.a]"));
}

TEST(Deadlock, is_proven_when_every_rank_waits_for_something_else) {
  Simulator sim(make_groups(6, 3), stall_options(60), 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    sim.submit(rank, named(rank == 4 ? "allreduce.b" : "allreduce.a"), kFloats, true);
  }
  sim.settle(seconds(59));
  EXPECT_FALSE(sim.at(0).fatal);
  sim.settle(seconds(2));
  ASSERT_TRUE(sim.at(0).fatal);
  EXPECT_EQ(sim.at(0).fatal->code, Code::Timeout);
  EXPECT_TRUE(contains(sim.at(0).fatal->message, "rank 4 on host host4 waits for allreduce.b"));
  EXPECT_TRUE(contains(sim.at(0).fatal->message, "rank 5 on host host5 waits for allreduce.a"));
  EXPECT_TRUE(contains(sim.at(0).fatal->message,
                       "Of allreduce.b: all ranks must call it. Is it inside `if hvd.rank() == "
                       "4:`?"));
}

TEST(Deadlock, is_not_claimed_while_a_rank_computes) {
  Simulator sim(make_groups(6, 3), stall_options(60), 1);
  for (Rank rank = 0; rank < 5; ++rank) sim.submit(rank, named("allreduce.a"), kFloats, true);
  sim.settle(seconds(600));
  EXPECT_FALSE(sim.at(0).fatal);
}

TEST(Deadlock, is_not_claimed_while_a_rank_computes_whose_replicas_nobody_compares) {
  Simulator sim(make_groups(2, 1), stall_options(60), 1);
  sim.submit(0, named("allreduce.replicas of gradients.1"), kFloats);
  sim.mark_all_waited(0);  // with something else that has ended since
  sim.submit(1, named("allreduce.a"), kFloats, true);
  sim.settle(seconds(600));
  EXPECT_FALSE(sim.at(0).fatal);
}

TEST(Stall, does_not_count_replicas_that_some_ranks_compare) {
  Simulator sim(make_groups(2, 1), stall_options(10, 20), 1);
  sim.submit(0, named("allreduce.replicas of gradients.1"), kFloats);
  sim.mark_all_waited(0);
  sim.settle(seconds(5));
  sim.submit(1, named("allreduce.a"), kFloats);
  sim.mark_all_waited(1);
  sim.settle(seconds(12));
  ASSERT_EQ(sim.at(0).warnings.size(), 1U);
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "Missing ranks:\n0: [allreduce.a]\n"));
  EXPECT_FALSE(sim.at(0).fatal);
}

TEST(Deadlock, is_not_claimed_when_a_blocked_rank_submits_from_another_thread) {
  Simulator sim(make_groups(4, 2), stall_options(60), 1);
  for (Rank rank = 0; rank < 4; ++rank) {
    sim.submit(rank, named(rank == 3 ? "allreduce.b" : "allreduce.a"), kFloats, true);
  }
  sim.settle(seconds(50));  // all have said that they are blocked
  sim.submit(3, named("allreduce.a"), kFloats);
  sim.settle(seconds(5));
  EXPECT_EQ(sim.at(0).dispatches.size(), 1U);
  sim.settle(seconds(600));
  EXPECT_FALSE(sim.at(0).fatal) << "only rank 3 waits now";
}

TEST(Deadlock, is_not_claimed_while_a_node_holds_what_a_blocked_rank_submitted) {
  Simulator sim(make_groups(6, 3), stall_options(60), 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    sim.submit(rank, named(rank == 5 ? "allreduce.b" : "allreduce.a"), kFloats, true);
  }
  sim.settle(seconds(50));  // all have said that they are blocked
  sim.submit(5, named("allreduce.c"), kFloats, true);
  sim.settle(seconds(20));
  EXPECT_FALSE(sim.at(0).fatal) << "rank 5 did something 20 s ago";
  sim.settle(seconds(45));
  EXPECT_TRUE(sim.at(0).fatal);
}

TEST(Deadlock, is_not_claimed_from_what_was_said_before_the_last_dispatch) {
  Simulator sim(make_groups(2, 1), stall_options(60), 1);
  sim.submit(1, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  sim.now += seconds(31);
  sim.tick(1);  // blocked, but the message is on its way
  ASSERT_EQ(sim.busy_edges.size(), 1U);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_EQ(sim.at(1).dispatches.size(), 1U);
  sim.submit(0, named("allreduce.b"), kFloats, true);
  sim.settle(seconds(300));
  EXPECT_FALSE(sim.at(0).fatal) << "rank 1 computes";
}

TEST(Deadlock, is_proven_among_the_ranks_that_have_not_joined) {
  Simulator sim(make_groups(3, 3), stall_options(60), 1);
  sim.join(2);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.submit(1, named("allreduce.b"), kFloats, true);
  sim.settle(seconds(61));
  EXPECT_TRUE(sim.at(0).fatal);
}

TEST(Deadlock, is_proven_with_the_stall_check_switched_off) {
  NegotiatorOptions options = stall_options(0);
  options.deadlock = seconds(60);
  Simulator sim(make_groups(6, 3), options, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    sim.submit(rank, named(rank == 4 ? "allreduce.b" : "allreduce.a"), kFloats, true);
  }
  sim.settle(seconds(61));
  ASSERT_EQ(sim.at(0).warnings.size(), 1U) << "none of the stall check";
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "Deadlock: "));
  EXPECT_TRUE(sim.at(0).fatal);
}

/// Ranks that wait for different operations. Of those in `still` no other thread could submit any.
Simulator stuck(const std::vector<Rank>& still) {
  Simulator sim(make_groups(6, 3), stall_options(60), 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    sim.submit(rank, named(rank == 4 ? "allreduce.b" : "allreduce.a"), kFloats, true);
  }
  for (const Rank rank : still) stand_still(sim, rank, true);
  return sim;
}

TEST(Deadlock, needs_no_time_where_no_rank_has_another_thread) {
  auto sim = stuck({0, 1, 2, 3, 4, 5});
  sim.settle(milliseconds(4900));
  EXPECT_FALSE(sim.at(0).fatal);
  sim.settle(milliseconds(200));
  ASSERT_TRUE(sim.at(0).fatal);
  EXPECT_EQ(sim.at(0).fatal->code, Code::Timeout);
  EXPECT_TRUE(contains(sim.at(0).fatal->message, "rank 4 on host host4 waits for allreduce.b"));
  EXPECT_TRUE(sim.at(0).warnings.empty());
}

TEST(Deadlock, is_said_early_and_claimed_late_where_one_rank_has_another_thread) {
  auto sim = stuck({0, 1, 2, 3, 4});
  sim.settle(seconds(6));
  EXPECT_FALSE(sim.at(0).fatal);
  ASSERT_EQ(sim.at(0).warnings.size(), 1U);
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "rank 4 on host host4 waits for allreduce.b"));
  EXPECT_TRUE(contains(sim.at(0).warnings[0],
                       "The world ends in 55 s unless another thread of a rank submits one"));
  sim.settle(seconds(20));
  EXPECT_EQ(sim.at(0).warnings.size(), 1U) << "said once";
  stand_still(sim, 5, true);  // that thread waits, too
  sim.settle(seconds(1));
  EXPECT_TRUE(sim.at(0).fatal);
}

TEST(Deadlock, is_not_claimed_early_of_a_rank_that_moves_again) {
  auto sim = stuck({0, 1, 2, 3, 4});
  sim.settle(seconds(6));
  stand_still(sim, 0, false);  // after it has said that it is blocked for certain
  stand_still(sim, 5, true);
  sim.settle(seconds(6));
  EXPECT_FALSE(sim.at(0).fatal);
  sim.submit(0, named("allreduce.b"), kFloats);
  for (const Rank rank : {1, 2, 3, 5}) sim.submit(rank, named("allreduce.b"), kFloats);
  sim.submit(4, named("allreduce.a"), kFloats);
  sim.settle(seconds(600));
  EXPECT_FALSE(sim.at(0).fatal);
  EXPECT_EQ(of(sim, 4, 1).outcome, Outcome::Dispatched);
  EXPECT_EQ(of(sim, 5, 1).outcome, Outcome::Dispatched);
}

TEST(Deadlock, is_not_certain_while_a_graph_waits) {
  auto sim = stuck({0, 1, 2, 3, 4, 5});
  const auto ticket = sim.submit(2, named("allreduce.c"), kFloats);
  sim.call(2, [&](Negotiator& n, TimePoint t, Effects& e) {
    n.mark_demanded(std::span(&ticket, 1), t, e);
  });
  sim.settle(seconds(50));
  EXPECT_FALSE(sim.at(0).fatal);
}

TEST(Deadlock, is_not_claimed_of_a_rank_whose_wait_was_interrupted) {
  Simulator sim(make_groups(2, 2), stall_options(60), 1);
  const auto ticket = sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.submit(1, named("allreduce.b"), kFloats, true);
  const auto leave = [&](Negotiator& n, TimePoint t, Effects& e) { n.mark_left(ticket, t, e); };
  sim.settle(seconds(30));  // it has said that it is blocked
  sim.call(0, leave);
  sim.call(0, leave);  // no more than once
  sim.settle(seconds(600));
  EXPECT_FALSE(sim.at(0).fatal) << "its script does something else";
  sim.submit(0, named("allreduce.b"), kFloats, true);
  sim.settle(seconds(1));
  EXPECT_EQ(sim.at(0).dispatches.size(), 1U);
}

TEST(Deadlock, is_claimed_much_later_where_only_graphs_wait) {
  Simulator sim(make_groups(6, 3), stall_options(60), 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    const auto ticket = sim.submit(rank, named(rank == 4 ? "allreduce.b" : "allreduce.a"), kFloats);
    sim.call(rank, [&](Negotiator& n, TimePoint t, Effects& e) {
      n.mark_demanded(std::span(&ticket, 1), t, e);
      n.mark_demanded(std::span(&ticket, 1), t, e);  // counts once
    });
  }
  sim.settle(seconds(550));
  EXPECT_FALSE(sim.at(0).fatal);
  sim.settle(seconds(52));
  ASSERT_TRUE(sim.at(0).fatal);
  EXPECT_TRUE(contains(sim.at(0).fatal->message, "rank 4 on host host4 waits for allreduce.b"));
}

TEST(Deadlock, is_not_claimed_while_one_graph_still_submits) {
  Simulator sim(make_groups(2, 2), stall_options(60), 1);
  const auto demand = [&](Rank rank, const char* name) {
    const auto ticket = sim.submit(rank, named(name), kFloats);
    sim.call(rank, [&](Negotiator& n, TimePoint t, Effects& e) {
      n.mark_demanded(std::span(&ticket, 1), t, e);
    });
  };
  demand(0, "allreduce.a");
  demand(1, "allreduce.b");
  sim.settle(seconds(550));
  demand(1, "allreduce.c");  // another part of the graph
  sim.settle(seconds(550));
  EXPECT_FALSE(sim.at(0).fatal);
  demand(1, "allreduce.a");
  sim.settle(seconds(1));
  EXPECT_EQ(sim.at(0).dispatches.size(), 1U);
  sim.settle(seconds(6000));
  EXPECT_FALSE(sim.at(0).fatal) << "rank 0 has nothing in flight";
}

TEST(Deadlock, polling_is_not_waiting) {
  Simulator sim(make_groups(2, 2), stall_options(60), 1);
  for (Rank rank : {0, 1}) {
    sim.submit(rank, named(rank == 0 ? "allreduce.a" : "allreduce.b"), kFloats);
    sim.call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.flush_held(t, e); });
  }
  sim.settle(seconds(600));
  EXPECT_FALSE(sim.at(0).fatal);
  EXPECT_GE(sim.at(0).warnings.size(), 9U);
}

}  // namespace
}  // namespace farandole::test

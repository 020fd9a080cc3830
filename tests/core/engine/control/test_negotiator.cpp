/// What is held, when it goes, and what meets what.

#include <gtest/gtest.h>

#include "negotiator_world.h"

namespace farandole::test {
namespace {

using std::chrono::milliseconds;

TEST(Negotiator, control_tree_leads_to_rank_0) {
  const auto groups = make_groups(8, 4);
  EXPECT_EQ(control_tree(groups, 0).children, (std::vector<Rank>{1, 2, 3, 4}));
  EXPECT_FALSE(control_tree(groups, 0).parent);
  EXPECT_EQ(control_tree(groups, 4).parent, 0);
  EXPECT_EQ(control_tree(groups, 4).children, (std::vector<Rank>{5, 6, 7}));
  EXPECT_EQ(control_tree(groups, 7).parent, 4);
  const auto many = make_groups(100, 2);  // 50 leaders
  EXPECT_EQ(control_tree(many, 2 * 32).parent, 0);
  EXPECT_EQ(control_tree(many, 2 * 33).parent, 2);
}

TEST(Negotiator, world_of_one_runs_what_is_waited_for_at_once) {
  auto sim = world(1, 1);
  const auto ticket = sim.submit(0, named("allreduce.a"), kFloats, true);
  EXPECT_EQ(of(sim, 0, ticket).outcome, Outcome::Dispatched);
  EXPECT_EQ(sim.messages, 0U);
  EXPECT_FALSE(sim.at(0).negotiator->next_tick());
}

TEST(Negotiator, world_of_one_holds_what_nobody_waits_for) {
  auto sim = world(1, 1);
  const auto ticket = sim.submit(0, named("allreduce.a"), kFloats);
  EXPECT_EQ(of(sim, 0, ticket).outcome, Outcome::Pending);
  EXPECT_FALSE(sim.at(0).negotiator->pending().empty());
  sim.call(0, [&](Negotiator& n, TimePoint t, Effects& e) { n.mark_waited(ticket, t, e); });
  EXPECT_EQ(of(sim, 0, ticket).outcome, Outcome::Dispatched);
  EXPECT_TRUE(sim.at(0).negotiator->pending().empty());
}

TEST(Negotiator, held_operations_go_after_the_cycle) {
  auto sim = world(2, 2);
  sim.submit(0, named("allreduce.a"), kFloats);
  sim.submit(1, named("allreduce.a"), kFloats);
  sim.deliver_all();
  EXPECT_EQ(sim.messages, 0U);
  EXPECT_EQ(sim.at(1).negotiator->next_tick(), sim.now + milliseconds(1));
  sim.settle();
  EXPECT_EQ(sim.at(1).dispatches.size(), 1U);
  EXPECT_FALSE(sim.at(0).negotiator->next_tick());
  EXPECT_FALSE(sim.at(1).negotiator->next_tick());
}

TEST(Negotiator, held_operations_go_when_they_reach_the_batch_size) {
  NegotiatorOptions options;
  options.batch_bytes = 3 * 1024;
  auto sim = world(2, 2, options);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sim.messages, 0U);
    sim.submit(1, named(numbered("allreduce.", i)), kFloats);
  }
  EXPECT_EQ(sim.messages, 1U);
}

TEST(Negotiator, demand_sends_what_is_held_without_waiting) {
  auto sim = world(2, 2);
  sim.submit(1, named("allreduce.a"), kFloats);
  sim.call(1, [](Negotiator& n, TimePoint t, Effects& e) { n.flush_held(t, e); });
  EXPECT_EQ(sim.messages, 1U);
}

TEST(Negotiator, waiting_for_one_sends_all_that_is_held_in_one_message) {
  auto sim = world(2, 2);
  for (Rank rank : {0, 1}) {
    for (int i = 0; i < 50; ++i) {
      sim.submit(rank, named(numbered("allreduce.", i)), kFloats);
    }
    sim.mark_all_waited(rank);
  }
  sim.deliver_all();
  EXPECT_EQ(sim.messages, 2U) << "one report and one dispatch";
  ASSERT_EQ(sim.at(1).dispatches.size(), 1U);
  EXPECT_EQ(sim.at(1).dispatches[0].size(), 50U);
}

TEST(Negotiator, unnamed_operations_meet_by_kind_and_handle) {
  auto sim = world(4, 2);
  for (std::uint64_t handle = 1; handle <= 3; ++handle) {
    for (Rank rank = 0; rank < 4; ++rank) {
      sim.submit(rank, unnamed(Kind::Allreduce, handle), kFloats, true);
    }
    sim.deliver_all();
    EXPECT_EQ(sim.at(3).dispatches.size(), handle);
  }
}

TEST(Negotiator, a_name_in_flight_is_a_duplicate_and_harms_nothing) {
  auto sim = world(2, 2);
  const auto first = sim.submit(0, named("allreduce.a"), kFloats, true);
  const auto again = sim.submit(0, named("allreduce.a"), kFloats, true);
  ASSERT_EQ(of(sim, 0, again).outcome, Outcome::Failed);
  EXPECT_EQ(of(sim, 0, again).error.code, Code::Duplicate);
  EXPECT_TRUE(contains(of(sim, 0, again).error.message, "same name as another tensor"));
  sim.submit(1, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_EQ(of(sim, 0, first).outcome, Outcome::Dispatched);
}

TEST(Negotiator, pending_says_who_is_missing_at_the_coordinator) {
  auto sim = world(3, 3);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.submit(1, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  const auto pending = sim.at(0).negotiator->pending();
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(pending[0].name, "allreduce.a");
  EXPECT_EQ(pending[0].missing, std::vector<Rank>{2});
}

TEST(Negotiator, unknown_senders_and_bytes_are_errors) {
  auto sim = world(4, 2);
  Effects effects;
  const std::vector<std::byte> bytes(3, std::byte{1});
  EXPECT_FALSE(receive(*sim.at(0).negotiator, 3, bytes, sim.now, effects));
  EXPECT_FALSE(receive(*sim.at(0).negotiator, 1, bytes, sim.now, effects));
  EXPECT_FALSE(receive(*sim.at(1).negotiator, 0, bytes, sim.now, effects));
}

}  // namespace
}  // namespace farandole::test

/// What the negotiator does in single, chosen situations.

#include <gtest/gtest.h>

#include "simulator.h"

namespace rueda::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Signature kFloats = signature(Kind::Allreduce, {256});

Simulator world(int size, int per_group, NegotiatorOptions options = {}) {
  return Simulator(make_groups(size, per_group), options, 1);
}

const Submission& of(Simulator& sim, Rank rank, std::uint64_t ticket) {
  return sim.at(rank).submissions.at(ticket);
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

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
  EXPECT_TRUE(sim.at(0).negotiator->busy());
  sim.call(0, [&](Negotiator& n, TimePoint t, Effects& e) { n.want(ticket, t, e); });
  EXPECT_EQ(of(sim, 0, ticket).outcome, Outcome::Dispatched);
  EXPECT_FALSE(sim.at(0).negotiator->busy());
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
  sim.call(1, [](Negotiator& n, TimePoint t, Effects& e) { n.demand(t, e); });
  EXPECT_EQ(sim.messages, 1U);
}

TEST(Negotiator, waiting_for_one_sends_all_that_is_held_in_one_message) {
  auto sim = world(2, 2);
  for (Rank rank : {0, 1}) {
    for (int i = 0; i < 50; ++i) {
      sim.submit(rank, named(numbered("allreduce.", i)), kFloats);
    }
    sim.want_all(rank);
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

TEST(Negotiator, a_group_with_a_duplicate_is_refused_as_a_whole) {
  auto sim = world(1, 1);
  sim.submit(0, named("allreduce.g_2of2"), kFloats);
  Signature member = kFloats;
  member.group = {"allreduce.g", 2};
  const auto tickets =
      sim.submit_group(0, {named("allreduce.g_1of2"), named("allreduce.g_2of2")}, {member, member});
  EXPECT_EQ(of(sim, 0, tickets[0]).error.code, Code::Duplicate);
  // The first member was not left behind.
  const auto alone = sim.submit(0, named("allreduce.g_1of2"), kFloats, true);
  EXPECT_EQ(of(sim, 0, alone).outcome, Outcome::Dispatched);
}

TEST(Negotiator, the_members_of_a_group_come_out_together) {
  auto sim = world(2, 1);
  Signature member = kFloats;
  member.group = {"allreduce.g", 3};
  Signature half = member;
  half.dtype = DType::Float16;
  const std::vector<Key> keys{named("allreduce.g_1of3"), named("allreduce.g_2of3"),
                              named("allreduce.g_3of3")};
  for (Rank rank : {0, 1}) sim.submit_group(rank, keys, {member, half, member}, true);
  sim.deliver_all();
  // Two types: two batches, in one message.
  ASSERT_EQ(sim.at(1).dispatches.size(), 2U);
  EXPECT_EQ(sim.at(1).dispatches[0], (std::vector<std::uint64_t>{1, 3}));
  EXPECT_EQ(sim.messages, 2U);
}

TEST(Negotiator, a_group_waits_for_its_last_member) {
  auto sim = world(2, 1);
  Signature member = kFloats;
  member.group = {"allreduce.g", 2};
  for (const char* name : {"allreduce.g_1of2", "allreduce.g_2of2"}) {
    EXPECT_TRUE(sim.at(1).dispatches.empty());
    for (Rank rank : {0, 1}) sim.submit(rank, named(name), member, true);
    sim.deliver_all();
  }
  ASSERT_EQ(sim.at(1).dispatches.size(), 1U);
  EXPECT_EQ(sim.at(1).dispatches[0], (std::vector<std::uint64_t>{1, 2}));
}

TEST(Negotiator, groups_of_one_name_and_different_sizes_do_not_mix) {
  auto sim = world(2, 1);
  const auto submit_both = [&](Rank rank, std::vector<std::uint32_t> sizes) {
    for (std::uint32_t size : sizes) {
      std::vector<Key> keys;
      for (std::uint32_t i = 1; i <= size; ++i) {
        keys.push_back(named(numbered("allreduce.g_", i) + numbered("of", size)));
      }
      Signature member = kFloats;
      member.group = {"allreduce.g", size};
      sim.submit_group(rank, keys, std::vector<Signature>(size, member));
    }
    sim.want_all(rank);
  };
  submit_both(0, {3, 2});
  submit_both(1, {2});
  sim.deliver_all();
  ASSERT_EQ(sim.at(0).dispatches.size(), 1U);
  EXPECT_EQ(sim.at(0).dispatches[0], (std::vector<std::uint64_t>{4, 5}));
  submit_both(1, {3});
  sim.deliver_all();
  EXPECT_EQ(sim.at(0).dispatches.back(), (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST(Negotiator, two_groups_of_equal_size_with_a_name_in_common_disagree) {
  auto sim = world(4, 4);
  Signature one = kFloats;
  one.group = {"allreduce.g", 1};
  Signature other = kFloats;
  other.group = {"allreduce.h", 1};
  for (Rank rank = 0; rank < 4; ++rank) {
    sim.submit(rank, named("allreduce.a"), rank == 2 ? other : one, true);
  }
  sim.deliver_all();
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(contains(of(sim, rank, 1).error.message, "Mismatched groups"));
  }
}

TEST(Negotiator, a_group_with_one_mismatch_fails_as_a_whole) {
  auto sim = world(2, 1);
  Signature member = kFloats;
  member.group = {"allreduce.g", 2};
  Signature other = member;
  other.shape = {7};
  const std::vector<Key> keys{named("allreduce.g_1of2"), named("allreduce.g_2of2")};
  sim.submit_group(0, keys, {member, member}, true);
  sim.submit_group(1, keys, {member, other}, true);
  sim.deliver_all();
  for (Rank rank : {0, 1}) {
    for (std::uint64_t ticket : {1U, 2U}) {
      EXPECT_EQ(of(sim, rank, ticket).outcome, Outcome::Failed);
      EXPECT_EQ(of(sim, rank, ticket).error.tensor, "allreduce.g_2of2");
    }
  }
}

TEST(Negotiator, disagreement_is_the_same_error_everywhere_and_frees_the_name) {
  auto sim = world(6, 3);
  Signature doubles = kFloats;
  doubles.dtype = DType::Float64;
  for (int round = 0; round < 3; ++round) {
    // Known by number in later rounds: the rank that differs says its signature in full.
    for (Rank rank = 0; rank < 6; ++rank) sim.submit(rank, named("allreduce.a"), kFloats, true);
    sim.deliver_all();
    std::vector<std::uint64_t> tickets;
    for (Rank rank = 0; rank < 6; ++rank) {
      tickets.push_back(
          sim.submit(rank, named("allreduce.a"), rank == 4 && round < 2 ? doubles : kFloats, true));
    }
    sim.deliver_all();
    for (Rank rank = 0; rank < 6; ++rank) {
      const Submission& submission = of(sim, rank, tickets[static_cast<std::size_t>(rank)]);
      if (round == 2) {
        EXPECT_EQ(submission.outcome, Outcome::Dispatched);
        continue;
      }
      ASSERT_EQ(submission.outcome, Outcome::Failed);
      EXPECT_EQ(submission.error.code, Code::Mismatch);
      EXPECT_EQ(submission.error.tensor, "allreduce.a");
      EXPECT_EQ(submission.error.message, of(sim, 0, tickets[0]).error.message);
      EXPECT_TRUE(contains(submission.error.message,
                           "Mismatched data types: One rank had type float32, but another rank had "
                           "type float64"))
          << submission.error.message;
      EXPECT_TRUE(contains(submission.error.message, "Ranks 0-3, 5: ALLREDUCE"))
          << submission.error.message;
      EXPECT_TRUE(contains(submission.error.message, "rank 4: ALLREDUCE"));
    }
  }
}

TEST(Negotiator, a_group_and_a_single_operation_of_one_name_disagree) {
  auto sim = world(2, 1);
  Signature grouped = kFloats;
  grouped.group = {"allreduce.g", 1};
  sim.submit(0, named("allreduce.a"), grouped, true);
  sim.submit(1, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_TRUE(contains(of(sim, 0, 1).error.message, "Mismatched group sizes"));
  EXPECT_EQ(of(sim, 1, 1).outcome, Outcome::Failed);
}

TEST(Negotiator, allgather_rows_may_differ_and_keep_their_number) {
  auto sim = world(4, 2);
  for (int step = 0; step < 5; ++step) {
    const auto before = sim.message_bytes;
    for (Rank rank = 0; rank < 4; ++rank) {
      sim.submit(rank, named("allgather.a"), signature(Kind::Allgather, {step + rank, 3}), true);
    }
    sim.deliver_all();
    ASSERT_EQ(sim.at(3).dispatches.size(), static_cast<std::size_t>(step) + 1);
    EXPECT_EQ(sim.at(3).signatures.back()[0]->shape, (Shape{step + 3, 3}));
    if (step > 0) {
      EXPECT_LE(sim.message_bytes - before, 3 * (32 + 40));
    }
  }
}

TEST(Negotiator, a_scalar_allgather_fails_even_alone) {
  auto sim = world(1, 1);
  sim.submit(0, named("allgather.a"), signature(Kind::Allgather, {}), true);
  EXPECT_TRUE(contains(of(sim, 0, 1).error.message, "ALLGATHER a rank-zero tensor"));
}

TEST(Negotiator, joined_ranks_take_part_in_allreduce) {
  auto sim = world(4, 2);
  sim.join(3);
  for (Rank rank = 0; rank < 3; ++rank) sim.submit(rank, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(of(sim, rank, 1).outcome, Outcome::Dispatched);
  ASSERT_EQ(sim.at(3).dispatches.size(), 1U);
  EXPECT_EQ(sim.at(3).dispatches[0], (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(sim.at(3).signatures[0][0]->shape, (Shape{256}));
}

TEST(Negotiator, what_was_submitted_before_the_join_still_counts) {
  auto sim = world(4, 4);
  const auto ticket = sim.submit(3, named("allgather.a"), signature(Kind::Allgather, {2}));
  sim.join(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    sim.submit(rank, named("allgather.a"), signature(Kind::Allgather, {2}), true);
  }
  sim.deliver_all();
  EXPECT_EQ(of(sim, 3, ticket).outcome, Outcome::Dispatched);
}

TEST(Negotiator, other_kinds_fail_while_a_rank_has_joined) {
  auto sim = world(4, 2);
  for (Rank rank : {0, 2, 3}) {
    sim.submit(rank, named("broadcast.a"), signature(Kind::Broadcast, {2}), true);
  }
  sim.deliver_all();
  EXPECT_EQ(of(sim, 0, 1).outcome, Outcome::Pending);
  sim.join(1);
  sim.deliver_all();
  for (Rank rank : {0, 2, 3}) {
    ASSERT_EQ(of(sim, rank, 1).outcome, Outcome::Failed);
    EXPECT_TRUE(
        contains(of(sim, rank, 1).error.message, "is not supported with Join at this time"));
  }
  for (Rank rank : {0, 2, 3}) sim.join(rank);
  sim.deliver_all();
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(sim.at(rank).joined_last.size(), 1U);
}

TEST(Negotiator, the_last_rank_to_join_is_the_same_everywhere_and_rounds_repeat) {
  auto sim = world(4, 4);
  for (Rank last : {2, 0, 3, 1}) {
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank != last) sim.join(rank);
    }
    sim.deliver_all();
    sim.join(last);
    sim.deliver_all();
    for (Rank rank = 0; rank < 4; ++rank) {
      ASSERT_FALSE(sim.at(rank).joined_last.empty());
      EXPECT_EQ(sim.at(rank).joined_last.back(), last);
    }
    for (Rank rank = 0; rank < 4; ++rank) sim.submit(rank, named("allreduce.a"), kFloats, true);
    sim.deliver_all();
  }
  EXPECT_EQ(sim.at(0).dispatches.size(), 4U);
}

TEST(Negotiator, a_joined_rank_cannot_submit) {
  auto sim = world(2, 2);
  sim.join(1);
  sim.submit(1, named("allreduce.a"), kFloats, true);
  EXPECT_EQ(of(sim, 1, 1).error.code, Code::InvalidArgument);
}

TEST(Negotiator, a_world_of_one_joins_at_once) {
  auto sim = world(1, 1);
  sim.join(0);
  EXPECT_EQ(sim.at(0).joined_last, std::vector<Rank>{0});
}

TEST(Negotiator, shutdown_fails_what_is_incomplete_and_names_the_rank) {
  auto sim = world(4, 2);
  for (Rank rank = 0; rank < 4; ++rank) sim.submit(rank, named("allreduce.done"), kFloats, true);
  for (Rank rank = 0; rank < 3; ++rank) sim.submit(rank, named("allreduce.open"), kFloats, true);
  sim.shutdown(3);
  sim.deliver_all();
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(of(sim, rank, 1).outcome, Outcome::Dispatched);
    EXPECT_EQ(sim.at(rank).shutdown_by, 3);
    EXPECT_TRUE(sim.at(rank).closed);
    if (rank == 3) continue;
    ASSERT_EQ(of(sim, rank, 2).outcome, Outcome::Failed);
    EXPECT_EQ(of(sim, rank, 2).error.code, Code::Shutdown);
    EXPECT_TRUE(contains(of(sim, rank, 2).error.message,
                         "Horovod has been shut down by rank 3 (host host3)"));
  }
  const auto late = sim.submit(0, named("allreduce.late"), kFloats, true);
  EXPECT_EQ(of(sim, 0, late).error.code, Code::Shutdown);
}

TEST(Negotiator, a_script_that_failed_is_a_lost_rank_to_all_others_and_no_departure_to_itself) {
  using Reason = wire::Departure::Reason;
  auto sim = world(4, 2);
  for (Rank rank = 0; rank < 4; ++rank) sim.submit(rank, named("allreduce.done"), kFloats, true);
  for (Rank rank : {0, 1, 2}) sim.submit(rank, named("allreduce.open"), kFloats, true);
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_FALSE(sim.at(rank).negotiator->departure());
  sim.deliver_all();
  sim.shutdown(3, {.reason = Reason::Failed, .text = "raised ValueError: boom"});
  sim.deliver_all();
  sim.shutdown(1, {.reason = Reason::Failed, .text = "a consequence"});  // the first counts
  sim.deliver_all();
  const std::string told =
      "rank 3 (host host3) has ended: its script raised ValueError: boom. Its own output says more";
  for (Rank rank : {0, 1, 2}) {
    EXPECT_EQ(of(sim, rank, 1).outcome, Outcome::Dispatched);  // what was decided is done
    ASSERT_EQ(of(sim, rank, 2).outcome, Outcome::Failed);
    const Error& error = of(sim, rank, 2).error;
    EXPECT_EQ(error.code, Code::PeerLost);
    EXPECT_EQ(error.message, told);
    EXPECT_EQ(error.peer, 3);
    EXPECT_EQ(error.tensor, "allreduce.open");
    EXPECT_EQ(error.missing, std::vector<Rank>{3});
    const auto departure = sim.at(rank).negotiator->departure();
    ASSERT_TRUE(departure);
    EXPECT_EQ(departure->code, Code::PeerLost);
    EXPECT_EQ(departure->message, told);
    EXPECT_EQ(departure->peer, 3);
    const auto late = sim.submit(rank, named("allreduce.late"), kFloats, true);
    EXPECT_EQ(of(sim, rank, late).error.message, told);
  }
  EXPECT_FALSE(sim.at(3).negotiator->departure());
}

TEST(Negotiator, who_leaves_in_peace_is_the_cause_only_where_it_was_needed) {
  using Reason = wire::Departure::Reason;
  for (const Reason reason : {Reason::Asked, Reason::ScriptOver}) {
    auto sim = world(3, 3);
    sim.submit(0, named("allreduce.open"), kFloats, true);
    sim.shutdown(2, {.reason = reason, .text = {}});
    sim.deliver_all();
    for (Rank rank : {1, 2}) EXPECT_FALSE(sim.at(rank).negotiator->departure());
    const auto departure = sim.at(0).negotiator->departure();  // it was needed there
    ASSERT_TRUE(departure);
    EXPECT_EQ(departure->code, Code::Shutdown);
    EXPECT_EQ(departure->peer, 2);
    sim.submit(1, named("allreduce.late"), kFloats, true);
    EXPECT_TRUE(sim.at(1).negotiator->departure()) << "it is needed there now";
    const Error& error = of(sim, 0, 1).error;
    EXPECT_EQ(error.code, Code::Shutdown);
    EXPECT_EQ(error.peer, 2);
    EXPECT_TRUE(error.missing.empty());
    EXPECT_EQ(contains(error.message, "its script has come to its end"),
              reason == Reason::ScriptOver)
        << error.message;
    EXPECT_EQ(contains(error.message, "call hvd.init() to start again"), reason == Reason::Asked)
        << error.message;
  }
}

TEST(Negotiator, channels_close_only_after_all_have_acknowledged) {
  auto sim = world(4, 2);
  sim.acknowledge_at_once = false;
  sim.shutdown(0);
  sim.deliver_all();
  for (Rank rank : {1, 2, 3, 0}) {
    EXPECT_FALSE(sim.at(0).closed);
    sim.call(rank, [](Negotiator& n, TimePoint t, Effects& e) { n.acknowledge_shutdown(t, e); });
    sim.deliver_all();
  }
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_TRUE(sim.at(rank).closed);
}

TEST(Negotiator, pending_says_who_is_missing_at_the_caller) {
  auto sim = world(3, 3);
  sim.submit(0, named("allreduce.a"), kFloats, true);
  sim.submit(1, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  const auto pending = sim.at(0).negotiator->pending();
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(pending[0].name, "allreduce.a");
  EXPECT_EQ(pending[0].missing, std::vector<Rank>{2});
}

TEST(Negotiator, a_step_of_161_keys_costs_a_few_messages_per_edge) {
  auto sim = world(32, 8);
  const int edges = 31;
  for (int step = 0; step < 5; ++step) {
    const auto messages = sim.messages;
    const auto bytes = sim.message_bytes;
    for (Rank rank = 0; rank < 32; ++rank) {
      for (int i = 0; i < 161; ++i) {
        // About 25 batches of 1 MiB, as a network of 100 MB has.
        sim.submit(rank, named(numbered("allreduce.layer", i)),
                   signature(Kind::Allreduce, {1 + i % 3, 80000}));
      }
      sim.want_all(rank);
    }
    sim.deliver_all();
    if (step == 0) continue;
    EXPECT_LE(sim.messages - messages, static_cast<std::uint64_t>(edges) * 2 * 110);
    RecordProperty("messages_per_edge_and_step",
                   static_cast<int>((sim.messages - messages) / edges));
    RecordProperty("bytes_per_edge_and_step",
                   static_cast<int>((sim.message_bytes - bytes) / edges));
  }
  EXPECT_GE(sim.at(31).dispatches.size(), 5U);
}

TEST(Negotiator, a_step_with_small_tensors_is_two_messages_per_edge) {
  auto sim = world(32, 8);
  for (int step = 0; step < 5; ++step) {
    const auto messages = sim.messages;
    for (Rank rank = 0; rank < 32; ++rank) {
      for (int i = 0; i < 161; ++i) {
        sim.submit(rank, named(numbered("allreduce.layer", i)), signature(Kind::Allreduce, {16}));
      }
      sim.want_all(rank);
    }
    // Reports of the leaves first, so that nodes hear all of them before they speak.
    for (Rank rank = 31; rank > 0; --rank) {
      for (auto& [edge, queue] : sim.edges) {
        if (edge.first != rank) continue;
        while (!queue.empty() && control_tree(make_groups(32, 8), rank).parent == edge.second) {
          const auto message = queue.front();
          queue.pop_front();
          if (queue.empty()) sim.busy_edges.erase(edge);
          sim.deliver(edge.first, edge.second, message);
        }
      }
    }
    sim.deliver_all();
    EXPECT_EQ(sim.messages - messages, 2U * 31);
    EXPECT_EQ(sim.at(31).dispatches.size(), static_cast<std::size_t>(step) + 1);
  }
}

TEST(Negotiator, numbers_are_bounded_and_forgotten) {
  NegotiatorOptions options;
  options.key_capacity = 100;
  auto sim = world(4, 2, options);
  for (int i = 0; i < 5000; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      sim.submit(rank, named(numbered("broadcast.", i)), signature(Kind::Broadcast, {i}), true);
    }
    sim.deliver_all();
  }
  EXPECT_EQ(sim.at(3).dispatches.size(), 5000U);
  for (auto& state : sim.ranks) EXPECT_LT(state.negotiator->remembered(), 1500U);
}

TEST(Negotiator, a_rank_that_never_reports_lets_numbers_be_forgotten_too) {
  NegotiatorOptions options;
  options.key_capacity = 10;
  auto sim = world(4, 2, options);
  sim.join(3);
  for (int i = 0; i < 5000; ++i) {
    for (Rank rank = 0; rank < 3; ++rank) {
      sim.submit(rank, named(numbered("allreduce.", i)), signature(Kind::Allreduce, {i}), true);
    }
    sim.deliver_all();
  }
  for (auto& state : sim.ranks) EXPECT_LT(state.negotiator->remembered(), 1500U);
}

TEST(Negotiator, unnamed_operations_leave_nothing_behind) {
  auto sim = world(4, 2);
  for (std::uint64_t i = 1; i < 3000; ++i) {
    for (Rank rank = 0; rank < 4; ++rank)
      sim.submit(rank, unnamed(Kind::Allreduce, i), kFloats, true);
    sim.deliver_all();
  }
  for (auto& state : sim.ranks) EXPECT_LT(state.negotiator->remembered(), 10U);
}

TEST(Negotiator, only_names_made_of_a_handle_number_go_without_a_number) {
  auto sim = world(4, 2);
  const auto remembered_after = [&sim](const std::string& name) {
    for (Rank rank = 0; rank < 4; ++rank) sim.submit(rank, named(name), kFloats, true);
    sim.deliver_all();
    return sim.at(3).negotiator->remembered();
  };
  const auto before = remembered_after("grouped_allreduce.noname.7_1of1");
  EXPECT_EQ(remembered_after("grouped_allreduce.noname.8_1of1"), before);
  // What an optimizer calls parameters that nobody has named: the same in every step.
  EXPECT_GT(remembered_after("allreduce.allreduce.noname.0.3"), before);
}

TEST(Negotiator, unknown_senders_and_bytes_are_errors) {
  auto sim = world(4, 2);
  Effects effects;
  const std::vector<std::byte> bytes(3, std::byte{1});
  EXPECT_FALSE(sim.at(0).negotiator->receive(3, bytes, sim.now, effects));
  EXPECT_FALSE(sim.at(0).negotiator->receive(1, bytes, sim.now, effects));
  EXPECT_FALSE(sim.at(1).negotiator->receive(0, bytes, sim.now, effects));
}

TEST(Negotiator, a_child_acknowledges_once_and_not_before_the_shutdown) {
  std::vector<std::byte> acknowledgement;
  wire::Writer writer(acknowledgement);
  writer.header({.direction = wire::Direction::Up});
  writer.acknowledge();
  auto sim = world(3, 3);
  sim.acknowledge_at_once = false;
  const auto acknowledge = [&](Rank rank) {
    Effects effects;
    auto done = sim.at(0).negotiator->receive(rank, acknowledgement, sim.now, effects);
    EXPECT_FALSE(effects.closed);
    return done ? std::string() : done.error().what();
  };
  EXPECT_TRUE(contains(acknowledge(1), "acknowledges what did not happen"));
  sim.shutdown(2);
  sim.deliver_all();
  EXPECT_EQ(acknowledge(1), "");
  // Not in place of rank 2, which has not.
  EXPECT_TRUE(contains(acknowledge(1), "acknowledges what did not happen"));
  const auto finish = [](Negotiator& n, TimePoint t, Effects& e) { n.acknowledge_shutdown(t, e); };
  sim.call(0, finish);
  EXPECT_FALSE(sim.at(0).closed);
  sim.call(2, finish);
  sim.deliver_all();
  EXPECT_TRUE(sim.at(0).closed);
}

}  // namespace
}  // namespace rueda::test

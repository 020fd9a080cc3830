/// What is said in short: how few bytes it takes, and that it is forgotten again.

#include <gtest/gtest.h>

#include "negotiator_world.h"

namespace farandole::test {
namespace {

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
      sim.mark_all_waited(rank);
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

TEST(Negotiator, a_key_has_an_id_for_the_group_that_it_was_used_in_only) {
  auto sim = world(2, 2);
  for (const Rank rank : {0, 1}) sim.submit(rank, named("allreduce.a"), kFloats, true);
  sim.deliver_all();
  const Negotiator& negotiator = *sim.at(1).negotiator;
  const auto ids = negotiator.cached_ids(named("allreduce.a"), kFloats);
  ASSERT_TRUE(ids);
  EXPECT_NE(ids->key, 0U);
  EXPECT_NE(ids->signature, 0U);
  Signature grouped = kFloats;
  grouped.group.name = "allreduce.g";
  EXPECT_FALSE(negotiator.cached_ids(named("allreduce.a"), grouped));
  EXPECT_FALSE(negotiator.cached_ids(named("allreduce.b"), kFloats));
  EXPECT_FALSE(negotiator.cached_ids(named("allreduce.a"), signature(Kind::Allreduce, {7})));
}

TEST(Negotiator, a_step_with_small_tensors_is_two_messages_per_edge) {
  auto sim = world(32, 8);
  for (int step = 0; step < 5; ++step) {
    const auto messages = sim.messages;
    for (Rank rank = 0; rank < 32; ++rank) {
      for (int i = 0; i < 161; ++i) {
        sim.submit(rank, named(numbered("allreduce.layer", i)), signature(Kind::Allreduce, {16}));
      }
      sim.mark_all_waited(rank);
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

}  // namespace
}  // namespace farandole::test

/// Groups: all their members come out together, or none.

#include <gtest/gtest.h>

#include "negotiator_world.h"

namespace farandole::test {
namespace {

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

/// Where groups fuse with themselves only.
TEST(Negotiator, single_operations_beside_a_group_come_out_one_by_one) {
  NegotiatorOptions options;
  options.disable_group_fusion = true;
  auto sim = world(2, 1, options);
  Signature member = kFloats;
  member.group = {"allreduce.g", 2};
  for (Rank rank : {0, 1}) {
    sim.submit(rank, named("allreduce.a"), kFloats);
    sim.submit(rank, named("allreduce.b"), kFloats);
    sim.submit_group(rank, {named("allreduce.g_1of2"), named("allreduce.g_2of2")}, {member, member},
                     true);
  }
  sim.deliver_all();
  using Tickets = std::vector<std::uint64_t>;
  EXPECT_EQ(sim.at(1).dispatches, (std::vector<Tickets>{{1}, {2}, {3, 4}}));
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
    sim.mark_all_waited(rank);
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

}  // namespace
}  // namespace farandole::test

/// Process sets and joins in chosen situations: what the negotiators agree on.

#include <gtest/gtest.h>

#include "negotiator_world.h"

namespace farandole::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Signature barrier() { return signature(Kind::Barrier, {}, DType::UInt8); }

class Sets : public testing::Test {
 protected:
  Simulator sim{make_groups(6, 3), {}, 1};

  const Submission& of(Rank rank, std::uint64_t ticket) {
    return sim.at(rank).submissions.at(ticket);
  }
  /// All ranks add a set; the ticket by rank.
  std::vector<std::uint64_t> add(const std::vector<Rank>& members) {
    std::vector<std::uint64_t> tickets;
    for (Rank rank = 0; rank < sim.size(); ++rank) tickets.push_back(sim.add_set(rank, members));
    sim.deliver_all();
    return tickets;
  }
  std::vector<std::uint64_t> remove(std::int32_t set) {
    std::vector<std::uint64_t> tickets;
    for (Rank rank = 0; rank < sim.size(); ++rank) tickets.push_back(sim.remove_set(rank, set));
    sim.deliver_all();
    return tickets;
  }
  void expect_all(const std::vector<std::uint64_t>& tickets, Code code, std::string_view text) {
    for (Rank rank = 0; rank < sim.size(); ++rank) {
      const Submission& one = of(rank, tickets[static_cast<std::size_t>(rank)]);
      ASSERT_EQ(one.outcome, Outcome::Failed);
      EXPECT_EQ(one.error.code, code);
      EXPECT_TRUE(contains(one.error.message, text)) << one.error.message;
    }
  }
};

TEST_F(Sets, a_new_set_has_the_same_number_on_members_and_others) {
  add({1, 4});
  add({0, 4, 5});
  for (auto& state : sim.ranks) {
    ASSERT_EQ(state.changes.size(), 2U);
    EXPECT_EQ(state.changes[0]->id, 1);
    EXPECT_TRUE(state.changes[0]->added);
    EXPECT_EQ(state.changes[1]->ranks, (std::vector<Rank>{0, 4, 5}));
    const auto sets = state.negotiator->process_sets();
    ASSERT_EQ(sets.size(), 3U);
    EXPECT_EQ(sets.at(0).size(), 6U);
    EXPECT_EQ(sets.at(1), (std::vector<Rank>{1, 4}));
  }
}

TEST_F(Sets, operations_of_a_set_concern_its_members_only) {
  add({1, 4});
  add({4, 5});
  const auto before = sim.at(0).dispatches.size();
  sim.submit(1, sim.key_in(1, 1, "allreduce.a"), kFloats, true);
  const auto mine = sim.submit(4, sim.key_in(4, 1, "allreduce.a"), kFloats, true);
  const auto other = sim.submit(4, sim.key_in(4, 2, "allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_EQ(of(4, mine).outcome, Outcome::Dispatched);
  EXPECT_EQ(of(4, other).outcome, Outcome::Pending) << "names are scoped by set";
  EXPECT_EQ(sim.at(1).dispatches.size(), before + 1);
  EXPECT_EQ(sim.at(0).dispatches.size(), before);
  EXPECT_EQ(sim.at(5).dispatches.size(), before);
}

TEST_F(Sets, using_an_unknown_or_foreign_set_is_an_error_on_the_caller) {
  add({1, 4});
  Key unknown = named("allreduce.a");
  unknown.process_set = 7;
  EXPECT_TRUE(contains(of(0, sim.submit(0, unknown, kFloats)).error.message,
                       "Process set 7 does not exist, or has not been registered"));
  const auto foreign = sim.submit(0, sim.key_in(0, 1, "allreduce.a"), kFloats);
  EXPECT_EQ(of(0, foreign).error.code, Code::InvalidArgument);
  EXPECT_TRUE(
      contains(of(0, foreign).error.message, "is not a member of the provided process set"));
}

TEST_F(Sets, ranks_that_disagree_about_a_set_all_hear_of_it) {
  std::vector<std::uint64_t> tickets;
  for (Rank rank = 0; rank < 6; ++rank) {
    tickets.push_back(
        sim.add_set(rank, rank == 3 ? std::vector<Rank>{1} : std::vector<Rank>{1, 2}));
  }
  sim.deliver_all();
  expect_all(tickets, Code::Mismatch, "One rank adds the set of ranks [1, 2], but another");
  EXPECT_EQ(sim.at(0).negotiator->process_sets().size(), 1U);
  add({1, 2});
  EXPECT_EQ(sim.at(0).negotiator->process_sets().size(), 2U);
  tickets.clear();
  for (Rank rank = 0; rank < 6; ++rank) {
    tickets.push_back(rank == 0 ? sim.remove_set(rank, 1) : sim.add_set(rank, {1}));
  }
  sim.deliver_all();
  expect_all(tickets, Code::Mismatch, "Mismatched operations: One rank did an REMOVE_PROCESS_SET");
}

TEST_F(Sets, a_duplicate_is_refused_on_every_rank) {
  add({1, 2});
  expect_all(add({1, 2}), Code::InvalidArgument, "duplicate process set");
  expect_all(add({0, 1, 2, 3, 4, 5}), Code::InvalidArgument, "duplicate process set");
  EXPECT_EQ(sim.at(3).negotiator->process_sets().size(), 2U);
}

TEST_F(Sets, members_that_cannot_be_are_refused_on_every_rank) {
  expect_all(add({1, 6}), Code::InvalidArgument, "ranks are 0 to 5");
  expect_all(add({-1}), Code::InvalidArgument, "ranks are 0 to 5");
  expect_all(add({1, 1}), Code::InvalidArgument, "twice");
  expect_all(add({2, 1}), Code::InvalidArgument, "ascending");
  expect_all(add({}), Code::InvalidArgument, "at least one rank");
  expect_all(remove(1), Code::InvalidArgument, "cannot be removed");
  expect_all(remove(0), Code::InvalidArgument, "cannot be removed");
}

TEST_F(Sets, freed_numbers_are_used_again_oldest_first_and_kept_apart) {
  add({0});
  add({1});
  add({2});
  const auto old = sim.key_in(1, 2, "allreduce.a");
  remove(2);
  remove(1);
  add({3});
  add({1, 5});
  add({4});
  const auto sets = sim.at(2).negotiator->process_sets();
  EXPECT_EQ(sets.at(2), std::vector<Rank>{3});
  EXPECT_EQ(sets.at(1), (std::vector<Rank>{1, 5}));
  EXPECT_EQ(sets.at(4), std::vector<Rank>{4});
  EXPECT_NE(sim.key_in(3, 2, "allreduce.a").generation, old.generation);
}

TEST_F(Sets, there_is_an_end_to_their_number) {
  World large(make_groups(256, 8), std::vector<std::string>(256), 0);
  std::int32_t added = 0;
  std::vector<Rank> pair{0, 1};
  while (large.check_addition(pair)) {
    EXPECT_EQ(large.add_set(pair).id, ++added);
    if (++pair[1] == large.size()) pair = {pair[0] + 1, pair[0] + 2};
  }
  EXPECT_EQ(added, kMaxProcessSets - 1);
  const auto refused = large.check_addition(pair);
  EXPECT_TRUE(contains(refused.error().message, "remove one first")) << refused.error().message;
  large.remove_set(7);
  ASSERT_TRUE(static_cast<bool>(large.check_addition(pair)));
  EXPECT_EQ(large.add_set(pair).id, 7);
}

TEST_F(Sets, those_on_different_hosts_share_channels) {
  // Four hosts of four ranks, as tensors, pipelines and data are divided.
  World large({{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}},
              std::vector<std::string>(16), 0);
  const auto channel = [&](const std::vector<Rank>& ranks) { return large.add_set(ranks).channel; };
  for (Rank first = 0; first < 16; first += 4) {
    EXPECT_EQ(channel({first, first + 1, first + 2, first + 3}), 1) << first;
  }
  for (Rank first = 0; first < 4; ++first) {
    EXPECT_EQ(channel({first, first + 4, first + 8, first + 12}), kNoChannel) << "one of each host";
  }
  EXPECT_EQ(channel({0, 1, 4, 5}), 2);
  EXPECT_EQ(channel({8, 9, 12}), 2) << "on one host alone";
  EXPECT_EQ(channel({12, 13}), 2) << "the one before has one rank there";
  EXPECT_EQ(channel({4, 5, 8, 9}), 3);
  EXPECT_EQ(channel({0, 1}), 3);
  EXPECT_EQ(channel({5}), kNoChannel);
  large.remove_set(1);  // the first of all
  EXPECT_EQ(channel({1, 2}), 1);
  EXPECT_EQ(channel({2, 3}), 4);
}

TEST_F(Sets, more_than_there_are_channels_on_a_host_have_none) {
  World large(make_groups(20, 20), std::vector<std::string>(20), 0);
  std::set<int> channels;
  int without = 0;
  for (Rank a = 0; a < 20; ++a) {
    for (Rank b = a + 1; b < 20; ++b) {
      const int channel = large.add_set(std::vector<Rank>{a, b}).channel;
      if (channel == kNoChannel) {
        ++without;
      } else {
        EXPECT_TRUE(channels.insert(channel).second) << channel;
      }
    }
  }
  EXPECT_EQ(channels.size(), static_cast<std::size_t>(kShmChannels - 1));
  EXPECT_EQ(without, 190 - (kShmChannels - 1));
}

TEST_F(Sets, what_is_pending_on_a_removed_set_fails) {
  add({1, 4, 5});
  const auto reported = sim.submit(4, sim.key_in(4, 1, "allreduce.a"), kFloats, true);
  const auto held = sim.submit(1, sim.key_in(1, 1, "allreduce.b"), kFloats);
  sim.deliver_all();
  remove(1);
  for (const auto& [rank, ticket] : {std::pair(4, reported), std::pair(1, held)}) {
    ASSERT_EQ(of(rank, ticket).outcome, Outcome::Failed);
    EXPECT_EQ(of(rank, ticket).error.code, Code::Internal);
    EXPECT_TRUE(contains(of(rank, ticket).error.message, "Process set has been removed"));
  }
  // The same name in the next set of that number is something new.
  add({4, 5});
  for (Rank rank : {4, 5}) sim.submit(rank, sim.key_in(rank, 1, "allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_EQ(sim.at(5).submissions.rbegin()->second.outcome, Outcome::Dispatched);
  for (auto& state : sim.ranks) EXPECT_TRUE(state.negotiator->pending().empty());
}

TEST_F(Sets, a_report_that_meets_the_news_of_the_removal_is_forgotten) {
  add({1, 4, 5});
  for (int use = 0; use < 2; ++use) {  // in the second round by number
    for (Rank rank : {1, 4, 5}) sim.submit(rank, sim.key_in(rank, 1, "allreduce.a"), kFloats, true);
    sim.deliver_all();
  }
  for (Rank rank = 0; rank < 6; ++rank) sim.remove_set(rank, 1);
  // The coordinator decides; then rank 5, which has not heard of it, reports.
  while (sim.at(0).negotiator->process_set(1) != nullptr) ASSERT_TRUE(sim.deliver_one());
  ASSERT_NE(sim.at(5).negotiator->process_set(1), nullptr);
  const auto late = sim.submit(5, sim.key_in(5, 1, "allreduce.a"), kFloats, true);
  const auto other = sim.submit(5, sim.key_in(5, 1, "allreduce.new"), kFloats, true);
  const auto held = sim.submit(5, sim.key_in(5, 1, "allreduce.held"), kFloats);
  sim.deliver_all();
  for (const auto ticket : {late, other, held}) {
    EXPECT_TRUE(contains(of(5, ticket).error.message, "Process set has been removed"));
  }
  sim.settle();  // nothing of it is reported later
  for (auto& state : sim.ranks) EXPECT_FALSE(state.fatal);
}

TEST_F(Sets, a_group_that_was_incomplete_is_forgotten_with_its_set) {
  for (int round = 0; round < 2; ++round) {
    add({1, 4});
    Signature member = kFloats;
    member.group = {"allreduce.g", 2};
    for (Rank rank : {1, 4})
      sim.submit(rank, sim.key_in(rank, 1, "allreduce.g_1of2"), member, true);
    sim.deliver_all();
    remove(1);
    EXPECT_TRUE(sim.at(4).negotiator->pending().empty());
  }
}

TEST_F(Sets, sets_of_the_start_are_numbered_in_order) {
  NegotiatorOptions options;
  options.process_sets = {{0}, {1, 2, 3}};
  Simulator fixed(make_groups(4, 2), options, 1);
  for (Rank rank : {1, 2, 3}) {
    fixed.submit(rank, fixed.key_in(rank, 2, "allreduce.a"), kFloats, true);
  }
  const auto alone = fixed.submit(0, fixed.key_in(0, 1, "allreduce.a"), kFloats, true);
  fixed.deliver_all();
  EXPECT_EQ(fixed.at(0).submissions.at(alone).outcome, Outcome::Dispatched);
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(fixed.at(rank).dispatches.size(), 1U);
}

TEST_F(Sets, an_operation_whose_missing_members_have_joined_fails) {
  add({1, 4, 5});
  const auto before = sim.submit(4, sim.key_in(4, 1, "allreduce.a"), kFloats, true);
  sim.submit(5, sim.key_in(5, 1, "allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_EQ(of(4, before).outcome, Outcome::Pending);
  sim.join(1);
  sim.deliver_all();
  EXPECT_TRUE(contains(of(4, before).error.message, "ALLREDUCE is not supported with Join"));
  const auto after = sim.submit(4, sim.key_in(4, 1, "allreduce.a"), kFloats, true);
  sim.submit(5, sim.key_in(5, 1, "allreduce.a"), kFloats, true);
  sim.deliver_all();
  EXPECT_TRUE(contains(of(4, after).error.message, "not supported with Join at this time: rank 1"));
}

TEST_F(Sets, sets_do_not_change_while_a_rank_has_joined) {
  sim.join(2);
  std::vector<std::uint64_t> tickets;
  for (Rank rank : {0, 1, 3, 4, 5}) tickets.push_back(sim.add_set(rank, {1, 2}));
  sim.deliver_all();
  EXPECT_TRUE(
      contains(of(5, tickets.back()).error.message, "ADD_PROCESS_SET is not supported with Join"));
  for (Rank rank : {0, 1, 3, 4, 5}) sim.join(rank);
  sim.deliver_all();
  // The rank that had joined did not count along, but has seen what passed.
  EXPECT_EQ(of(2, add({1, 2})[2]).outcome, Outcome::Dispatched);
}

TEST_F(Sets, barriers_are_matched_by_count_in_each_set) {
  add({1, 4});
  const auto set_barrier = sim.submit_counted(1, barrier(), 1);
  std::vector<std::uint64_t> first, second;
  for (Rank rank = 0; rank < 6; ++rank) {
    first.push_back(sim.submit_counted(rank, barrier()));
    if (rank < 5) second.push_back(sim.submit_counted(rank, barrier()));
  }
  sim.deliver_all();
  EXPECT_EQ(of(5, first[5]).outcome, Outcome::Dispatched);
  EXPECT_EQ(of(4, second[4]).outcome, Outcome::Pending) << "rank 5 has not come to the second";
  EXPECT_EQ(of(1, set_barrier).outcome, Outcome::Pending);
  sim.submit_counted(5, barrier());
  sim.submit_counted(4, barrier(), 1);
  sim.deliver_all();
  EXPECT_EQ(of(4, second[4]).outcome, Outcome::Dispatched);
  EXPECT_EQ(of(1, set_barrier).outcome, Outcome::Dispatched);
}

TEST_F(Sets, barriers_that_failed_while_a_rank_had_joined_count_for_it_too) {
  sim.join(4);
  std::vector<std::uint64_t> tickets;
  for (Rank rank : {0, 1, 2, 3, 5}) {
    sim.submit_counted(rank, barrier());
    tickets.push_back(sim.submit_counted(rank, barrier()));
  }
  sim.deliver_all();
  EXPECT_TRUE(contains(of(5, tickets.back()).error.message, "BARRIER is not supported with Join"));
  for (Rank rank : {0, 1, 2, 3, 5}) sim.join(rank);
  sim.deliver_all();
  tickets.clear();
  for (Rank rank = 0; rank < 6; ++rank) tickets.push_back(sim.submit_counted(rank, barrier()));
  sim.deliver_all();
  for (Rank rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(of(rank, tickets[static_cast<std::size_t>(rank)]).outcome, Outcome::Dispatched);
  }
}

TEST_F(Sets, a_join_fails_when_the_world_ends_first) {
  sim.join(4);
  sim.deliver_all();
  Effects effects;
  const auto twice = sim.at(4).negotiator->join(77, sim.now, effects);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, Code::Duplicate);
  sim.shutdown(2);
  sim.deliver_all();
  ASSERT_TRUE(sim.at(4).join_error);
  EXPECT_EQ(sim.at(4).join_error->code, Code::Shutdown);
  EXPECT_TRUE(contains(sim.at(4).join_error->message, "shut down by rank 2"));
  const auto late = sim.at(0).negotiator->join(1, sim.now, effects);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::Shutdown);
}

TEST_F(Sets, a_removal_that_some_ranks_do_not_want_is_reported_as_stalled) {
  add({1, 4});
  for (Rank rank = 0; rank < 5; ++rank) sim.remove_set(rank, 1);
  sim.settle(seconds(61));
  ASSERT_EQ(sim.at(0).warnings.size(), 1U);
  EXPECT_TRUE(contains(sim.at(0).warnings[0], "Missing ranks:\n5: [process_set]"))
      << sim.at(0).warnings[0];
}

}  // namespace
}  // namespace farandole::test

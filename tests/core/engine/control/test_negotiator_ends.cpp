/// How ranks join, leave and end the world.

#include <gtest/gtest.h>

#include "negotiator_world.h"

namespace farandole::test {
namespace {

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
                         "Horovod has been shut down by rank 3 on host host3"));
  }
  const auto late = sim.submit(0, named("allreduce.late"), kFloats, true);
  EXPECT_EQ(of(sim, 0, late).error.code, Code::Shutdown);
}

TEST(Negotiator, advice_and_full_stop_of_a_rank_that_has_ended_come_once) {
  using Reason = wire::Departure::Reason;
  const std::string lost = "raised PeerLostError: rank 2 is gone";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"raised OSError: no driver.", "raised OSError: no driver. Its own output says more"},
      {lost + ". Look at its own output for the reason.",
       lost + ". Look at its own output for the reason"},
  };
  for (const auto& [text, told] : cases) {
    auto sim = world(4, 2);
    sim.submit(0, named("allreduce.open"), kFloats, true);
    sim.deliver_all();
    sim.shutdown(3, {.reason = Reason::Failed, .text = text});
    sim.deliver_all();
    EXPECT_EQ(of(sim, 0, 1).error.message, "rank 3 on host host3 has ended: its script " + told);
  }
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
      "rank 3 on host host3 has ended: its script raised ValueError: boom. Its own output says "
      "more";
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

/// Error of rank 1 for the operation that rank 0 did not wait for.
std::string heard_at_the_end(Simulator& sim, std::uint64_t ticket) {
  sim.shutdown(0, {.reason = wire::Departure::Reason::ScriptOver, .text = {}});
  sim.deliver_all();
  return of(sim, 1, ticket).error.message;
}

TEST(Negotiator, a_rank_with_fewer_batches_is_told_from_one_that_never_calls) {
  auto sim = world(2, 2);
  for (int step = 0; step < 5; ++step) {
    for (Rank rank : {0, 1}) sim.submit(rank, named("allreduce.loss"), kFloats, true);
    sim.deliver_all();
  }
  EXPECT_EQ(heard_at_the_end(sim, sim.submit(1, named("allreduce.loss"), kFloats, true)),
            "Horovod has been shut down by rank 0 on host host0: its script has come to its end. "
            "Rank 0 took part in allreduce.loss 5 times, and rank 1 on host host1 has begun number "
            "6: give all ranks the same number of batches, or let each call hvd.join() after its "
            "last one");
  // The same after the news, and of another operation.
  const auto late = sim.submit(1, named("allreduce.loss"), kFloats, true);
  EXPECT_TRUE(contains(of(sim, 1, late).error.message, "5 times"))
      << of(sim, 1, late).error.message;
  const auto other = sim.submit(1, named("allreduce.metric"), kFloats, true);
  EXPECT_TRUE(contains(of(sim, 1, other).error.message,
                       "allreduce.metric was not complete even once: all ranks must call it. Is it "
                       "inside `if hvd.rank() == 1:`?"))
      << of(sim, 1, other).error.message;
}

TEST(Negotiator, calls_without_a_name_are_counted_from_the_first_that_is_open) {
  auto sim = world(2, 2);
  for (std::uint64_t call = 1; call <= 2; ++call) {
    for (Rank rank : {0, 1}) sim.submit(rank, unnamed(Kind::Allreduce, call), kFloats, true);
    sim.deliver_all();
  }
  (void)sim.submit(1, unnamed(Kind::Allreduce, 3), kFloats);
  const auto told =
      heard_at_the_end(sim, sim.submit(1, unnamed(Kind::Allreduce, 4), kFloats, true));
  EXPECT_TRUE(contains(told,
                       "Rank 0 took part in calls without a name 2 times, and rank 1 on host "
                       "host1 has begun number 3"))
      << told;
  // Those that have failed have numbers, too: nothing is said of the next one.
  const auto late = sim.submit(1, unnamed(Kind::Allreduce, 5), kFloats, true);
  EXPECT_FALSE(contains(of(sim, 1, late).error.message, "took part"))
      << of(sim, 1, late).error.message;
}

TEST(Negotiator, a_group_is_counted_as_one) {
  auto sim = world(2, 2);
  Signature grouped = kFloats;
  grouped.group = {.name = "grouped_allreduce.g", .size = 2};
  const std::vector<Key> keys{named("grouped_allreduce.g_1of2"), named("grouped_allreduce.g_2of2")};
  const auto submit = [&](Rank rank) {
    return sim.submit_group(rank, keys, {grouped, grouped}, true);
  };
  for (Rank rank : {0, 1}) (void)submit(rank);
  sim.deliver_all();
  const auto told = heard_at_the_end(sim, submit(1).back());
  EXPECT_TRUE(contains(told, "took part in grouped_allreduce.g 1 time, and rank 1")) << told;
}

TEST(Negotiator, who_has_asked_for_the_shutdown_submits_nothing_more) {
  auto sim = world(2, 2);
  sim.call(1, [](Negotiator& n, TimePoint t, Effects& e) { n.shutdown(t, e); });
  const auto late = sim.submit(1, named("allreduce.late"), kFloats, true);
  EXPECT_EQ(of(sim, 1, late).error.code, Code::Shutdown);
}

TEST(Negotiator, a_script_that_failed_counts_also_where_it_was_not_needed) {
  auto sim = world(3, 3);
  sim.shutdown(2, {.reason = wire::Departure::Reason::Failed, .text = "raised"});
  sim.deliver_all();
  for (const Rank rank : {0, 1}) EXPECT_TRUE(sim.at(rank).negotiator->departure());
}

TEST(Negotiator, rank_0_knows_what_a_rank_owes_and_others_what_they_wait_for) {
  auto sim = world(3, 3);
  sim.submit(0, named("allreduce.all"), kFloats, true);
  sim.submit(2, named("allreduce.all"), kFloats, true);
  sim.submit(1, named("allreduce.mine"), kFloats, true);
  sim.deliver_all();
  const auto owed = sim.at(0).negotiator->owed(1);
  ASSERT_EQ(owed.size(), 1U);
  EXPECT_EQ(owed[0].name, "allreduce.all");
  EXPECT_EQ(owed[0].missing, std::vector<Rank>{1});
  const auto pending = sim.at(1).negotiator->owed(2);
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(pending[0].name, "allreduce.mine");
}

TEST(Negotiator, who_leaves_has_no_part_in_the_sets_of_others) {
  NegotiatorOptions options;
  options.process_sets = {{1, 2}};
  auto sim = world(3, 3, options);
  Key key = named("allreduce.a");
  key.process_set = 1;
  key.generation = sim.at(1).negotiator->process_set(1)->generation;
  const auto told = heard_at_the_end(sim, sim.submit(1, key, kFloats, true));
  EXPECT_TRUE(contains(told, "Operations that it has no part in fail")) << told;
}

TEST(Negotiator, counts_of_evicted_keys_are_not_told) {
  NegotiatorOptions options;
  options.key_capacity = 1;
  auto sim = world(2, 2, options);
  for (const char* name : {"allreduce.a", "allreduce.b", "allreduce.c", "allreduce.a"}) {
    for (Rank rank : {0, 1}) sim.submit(rank, named(name), kFloats, true);
    sim.deliver_all();
  }
  const auto told = heard_at_the_end(sim, sim.submit(1, named("allreduce.b"), kFloats, true));
  EXPECT_FALSE(contains(told, "even once")) << told;
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

TEST(Negotiator, a_child_acknowledges_once_and_not_before_the_shutdown) {
  std::vector<std::byte> acknowledgement;
  wire::Writer writer(acknowledgement);
  writer.header({.direction = wire::Direction::Up});
  writer.acknowledge();
  auto sim = world(3, 3);
  sim.acknowledge_at_once = false;
  const auto acknowledge = [&](Rank rank) {
    Effects effects;
    auto done = receive(*sim.at(0).negotiator, rank, acknowledgement, sim.now, effects);
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
}  // namespace farandole::test

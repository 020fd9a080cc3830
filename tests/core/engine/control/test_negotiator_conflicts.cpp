/// Ranks that call one operation different things: found soon, and never claimed of a legal script.

#include <gtest/gtest.h>

#include "negotiator_world.h"

namespace farandole::test {
namespace {

using std::chrono::seconds;

const Signature kSum = signature(Kind::Allreduce, {256});
const Signature kGather = signature(Kind::Allgather, {256});

/// Keys and signatures of a group as a rank submits it.
std::pair<std::vector<Key>, std::vector<Signature>> group(const std::string& name, int size,
                                                          const Signature& one = kSum) {
  std::pair<std::vector<Key>, std::vector<Signature>> made;
  for (int i = 1; i <= size; ++i) {
    made.first.push_back(named(name + "_" + std::to_string(i) + "of" + std::to_string(size)));
    made.second.push_back(one);
    made.second.back().group = {.name = name, .size = static_cast<std::uint32_t>(size)};
  }
  return made;
}

void submit_group(Simulator& sim, Rank rank, const std::string& name, int size, bool waited = true,
                  const Signature& one = kSum) {
  const auto [keys, signatures] = group(name, size, one);
  sim.submit_group(rank, keys, signatures, waited);
}

/// Everything of that rank has failed with that text, and the world stands.
void expect_mismatch(Simulator& sim, Rank rank, std::string_view text) {
  EXPECT_FALSE(sim.at(0).fatal);
  for (const auto& [ticket, submission] : sim.at(rank).submissions) {
    ASSERT_EQ(submission.outcome, Outcome::Failed) << "rank " << rank;
    EXPECT_EQ(submission.error.code, Code::Mismatch);
    EXPECT_NE(submission.error.message.find(text), std::string::npos) << submission.error.message;
  }
}

class Conflict : public ::testing::TestWithParam<int> {};  // ranks of a host
INSTANTIATE_TEST_SUITE_P(Hosts, Conflict, ::testing::Values(1, 2, 3, 6));

TEST_P(Conflict, of_kinds_under_one_name_is_a_mismatch) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    const bool differs = rank == 4;
    sim.submit(rank, named(differs ? "allgather.x" : "allreduce.x"), differs ? kGather : kSum,
               true);
  }
  sim.settle(seconds(10));
  for (Rank rank = 0; rank < 6; ++rank) {
    expect_mismatch(sim, rank,
                    "Mismatched operations: One rank did an ALLREDUCE, but another rank did an "
                    "ALLGATHER. Ranks 0-3, 5: ALLREDUCE Sum of float32 [256]; rank 4: ALLGATHER of "
                    "float32 [*]");
  }
  for (Rank rank = 0; rank < 6; ++rank) sim.submit(rank, named("allreduce.x"), kSum, true);
  sim.settle(seconds(1));
  EXPECT_EQ(sim.at(5).dispatches.size(), 1U) << "the name is free again";
}

TEST_P(Conflict, of_a_sparse_and_a_dense_tensor_is_a_mismatch) {
  for (const char dot : {'.', '_'}) {
    Simulator sim(make_groups(6, GetParam()), {}, 1);
    for (Rank rank = 0; rank < 6; ++rank) {
      if (rank == 2) {  // no thread waits: graphs do
        const std::string name = std::string("allgather.x") + dot;
        sim.submit(rank, named(name + "indices"), kGather, false);
        sim.submit(rank, named(name + "values"), kGather, false);
        sim.submit(rank, named("allreduce.rest"), kSum, false);
      } else {
        sim.submit(rank, named("allreduce.x"), kSum, false);
      }
    }
    sim.settle(seconds(6));
    for (Rank rank = 0; rank < 6; ++rank) {
      expect_mismatch(sim, rank, "rank 2: ALLGATHER of float32 [*]");
      expect_mismatch(sim, rank, "A sparse tensor travels as an ALLGATHER");
      expect_mismatch(sim, rank, "sparse_as_dense=True");
    }
  }
}

TEST_P(Conflict, of_gradients_that_ranks_lack_is_a_mismatch) {
  // Of equal sizes and not, of slices and not; no thread waits: graphs do.
  for (const std::string parts : {"", "_values"}) {
    for (const int size : {2, 3}) {
      Simulator sim(make_groups(6, GetParam()), {}, 1);
      const std::string name = "grouped_allreduce.Tape/gradients_0";
      for (Rank rank = 0; rank < 6; ++rank) {
        const std::string lacking = rank == 0 ? "" : rank < 4 ? ".lacks.1" : ".lacks.0.2";
        submit_group(sim, rank, name + lacking + parts, rank == 0 ? size : 2, false);
      }
      sim.settle(seconds(6));
      for (Rank rank = 0; rank < 6; ++rank) {
        expect_mismatch(sim, rank, "Ranks have gradients for different variables");
        expect_mismatch(sim, rank, "Places of variables without: ");
      }
    }
  }
}

TEST_P(Conflict, of_gradients_that_all_ranks_lack_is_none) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    submit_group(sim, rank, "grouped_allreduce.gradients_0.lacks.1", 2, false);
  }
  sim.settle(seconds(1));
  for (Rank rank = 0; rank < 6; ++rank) EXPECT_EQ(sim.at(rank).dispatches.size(), 1U);
}

TEST_P(Conflict, of_group_sizes_is_a_mismatch) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    submit_group(sim, rank, "grouped_allreduce.x", rank < 3 ? 3 : 4);
  }
  sim.settle(seconds(10));
  for (Rank rank = 0; rank < 6; ++rank) {
    expect_mismatch(sim, rank,
                    "Mismatched group sizes: One rank submitted it in a group of 3, but another "
                    "rank submitted it in a group of 4.");
  }
}

TEST_P(Conflict, of_a_group_and_a_single_tensor_is_a_mismatch) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    if (rank == 5) {
      sim.submit(rank, named("allreduce.x"), kSum, true);
    } else {
      submit_group(sim, rank, "grouped_allreduce.x", 2);
    }
  }
  sim.settle(seconds(10));
  for (Rank rank = 0; rank < 6; ++rank) {
    expect_mismatch(sim, rank, "but another rank submitted it by itself.");
  }
}

TEST_P(Conflict, of_kinds_of_groups_is_a_mismatch) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    const bool differs = rank % 2 == 1;
    submit_group(sim, rank, differs ? "grouped_allgather.x" : "grouped_allreduce.x", 2, true,
                 differs ? kGather : kSum);
  }
  sim.settle(seconds(10));
  for (Rank rank = 0; rank < 6; ++rank) {
    expect_mismatch(sim, rank, "Mismatched operations: One rank did an ALLREDUCE");
  }
}

TEST_P(Conflict, of_calls_without_a_name_is_a_mismatch) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    const Kind kind = rank == 1 ? Kind::Allgather : Kind::Allreduce;
    const Key key{.process_set = 0, .generation = 0, .name = {}, .kind = kind, .number = 7};
    sim.submit(rank, key, rank == 1 ? kGather : kSum, true);
  }
  sim.settle(seconds(10));
  for (Rank rank = 0; rank < 6; ++rank) expect_mismatch(sim, rank, "Mismatched operations");
}

TEST_P(Conflict, is_not_claimed_while_a_member_computes) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 6; ++rank) {
    const bool first = rank != 4;
    sim.submit(rank, named(first ? "allreduce.x" : "allgather.x"), first ? kSum : kGather,
               first);  // rank 4 does not wait
  }
  sim.settle(seconds(50));
  sim.submit(4, named("allreduce.x"), kSum, true);
  for (Rank rank = 0; rank < 6; ++rank) {
    if (rank != 4) sim.submit(rank, named("allgather.x"), kGather, true);
  }
  sim.settle(seconds(1));
  for (Rank rank = 0; rank < 6; ++rank) EXPECT_EQ(sim.at(rank).dispatches.size(), 2U);
}

/// Two operations of one name at once, each rank in its own order, from two threads, of which the
/// second is late.
TEST_P(Conflict, is_not_claimed_of_scripts_that_use_a_name_for_two_kinds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Simulator sim(make_groups(6, GetParam()), {}, seed);
    for (int round = 0; round < 2; ++round) {
      for (Rank rank = 0; rank < 6; ++rank) {
        const bool first = sim.chance(0.5) == (round == 0);
        const bool reduce =
            round == 0 ? first : sim.at(rank).submissions.begin()->second.key.name != "allreduce.x";
        sim.submit(rank, named(reduce ? "allreduce.x" : "allgather.x"), reduce ? kSum : kGather,
                   true);
        if (sim.chance(0.3)) sim.settle(std::chrono::milliseconds(500));
      }
    }
    sim.settle(seconds(20));
    for (Rank rank = 0; rank < 6; ++rank) {
      for (const auto& [ticket, submission] : sim.at(rank).submissions) {
        EXPECT_EQ(submission.outcome, Outcome::Dispatched) << "seed " << seed;
      }
    }
  }
}

TEST_P(Conflict, is_not_claimed_before_all_members_have_said_one_thing) {
  Simulator sim(make_groups(6, GetParam()), {}, 1);
  for (Rank rank = 0; rank < 5; ++rank) {
    sim.submit(rank, named(rank == 4 ? "allgather.x" : "allreduce.x"), rank == 4 ? kGather : kSum,
               true);
  }
  sim.submit(5, named("allreduce.y"), kSum, true);  // waits, too, but for something else
  sim.settle(seconds(30));
  for (Rank rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(sim.at(rank).submissions.begin()->second.outcome, Outcome::Pending);
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

TEST(ConflictInASet, concerns_its_members_only) {
  NegotiatorOptions options;
  options.process_sets = {{1, 2}};
  Simulator sim(make_groups(4, 2), options, 1);
  sim.submit(1, sim.key_in(1, 1, "allreduce.x"), kSum, true);
  sim.submit(2, sim.key_in(2, 1, "broadcast.x"), signature(Kind::Broadcast, {256}), true);
  sim.settle(seconds(10));  // ranks 0 and 3 compute
  expect_mismatch(sim, 1, "Mismatched operations");
  expect_mismatch(sim, 2, "Mismatched operations");
}

TEST(ConflictBesideAJoin, is_found_among_those_that_have_not_joined) {
  Simulator sim(make_groups(3, 3), {}, 1);
  sim.join(2);
  sim.submit(0, named("allreduce.x"), kSum, true);
  sim.submit(1, named("allgather.x"), kGather, true);
  sim.settle(seconds(10));
  expect_mismatch(sim, 0, "Mismatched operations");
  expect_mismatch(sim, 1, "Mismatched operations");
}

}  // namespace
}  // namespace farandole::test

/// Engines as threads of one process: ranks that run out of data while others go on.

#include <gtest/gtest.h>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{
    {{0}}, {{0, 1}}, {{0, 1, 2, 3}}, {{0}, {1}, {2}}, {{0, 1}, {2, 3}}};

class EngineJoin : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EngineJoin, ::testing::ValuesIn(kWorlds), world_name);

Rank join(Engine& engine) {
  auto handle = engine.submit({.kind = Kind::Join});
  EXPECT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  if (!handle) return -1;
  const auto work = finish(engine, *handle);
  EXPECT_TRUE(work && !work->error && work->value)
      << (work && work->error ? work->error->what() : "");
  return work && work->value ? static_cast<Rank>(*work->value) : -1;
}

/// The error of an operation that is waited for; none if it succeeds.
std::optional<Error> run(Engine& engine, Submission submission) {
  auto handle = engine.submit(std::move(submission));
  if (!handle) return handle.error();
  const auto work = finish(engine, *handle);
  if (!work) return Error{.message = "it did not end"};
  return work->error;
}

TEST_P(EngineJoin, ranks_with_more_data_go_on_and_all_hear_who_was_last) {
  Cluster cluster(GetParam());
  std::vector<std::vector<Rank>> last(static_cast<std::size_t>(cluster.size()));
  cluster.each([&](Rank rank, Engine& engine) {
    const auto size = static_cast<float>(cluster.size());
    for (int round = 0; round < 4; ++round) {
      // Rank (round) has the least to do, the one before it the most.
      const int place = (rank - round % cluster.size() + cluster.size()) % cluster.size();
      for (int step = 0; step <= place; ++step) {
        // Those with a place below `step` have joined: they count as zeros, in the divisor too.
        std::vector<float> small(5, 1.0F), large(80'000, 1.0F);
        for (auto* values : {&small, &large}) {
          Submission submission =
              allreduce_of(*values, values == &small ? "small" : "large", false);
          submission.op = ReduceOp::Average;
          ASSERT_FALSE(run(engine, std::move(submission)));
          for (const float value : *values) {
            ASSERT_FLOAT_EQ(value, (size - static_cast<float>(step)) / size);
          }
        }
      }
      last[static_cast<std::size_t>(rank)].push_back(join(engine));
    }
    std::vector<float> values(3, static_cast<float>(rank));
    ASSERT_FALSE(run(engine, allreduce_of(values, "after")));
    ASSERT_EQ(values[0], size * (size - 1) / 2);
  });
  for (const auto& mine : last) EXPECT_EQ(mine, last.front());
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(last.front()[static_cast<std::size_t>(round)],
              (round + cluster.size() - 1) % cluster.size());
  }
}

TEST_P(EngineJoin, zeros_take_part_in_every_reduction) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;  // nobody else
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank != 0) {
      for (const auto& [op, want] :
           {std::pair(ReduceOp::Min, 0.0F), {ReduceOp::Max, 0.0F}, {ReduceOp::Product, 0.0F}}) {
        const float mine = op == ReduceOp::Max ? -2.0F : 2.0F;
        std::vector<float> values(100, mine);
        Submission submission = allreduce_of(values, "x");
        submission.op = op;
        ASSERT_FALSE(run(engine, std::move(submission)));
        for (const float value : values) ASSERT_EQ(value, want);
      }
    }
    join(engine);
  });
}

TEST_P(EngineJoin, calls_without_a_name_are_counted_anew) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(10, 1.0F);
      for (int step = 0; step < rank; ++step) ASSERT_FALSE(run(engine, allreduce_of(values, "")));
      join(engine);
      values.assign(10, 1.0F);
      ASSERT_FALSE(run(engine, allreduce_of(values, "")));
      Submission grouped = allreduce_of(values, "");
      grouped.grouped = true;
      ASSERT_FALSE(run(engine, std::move(grouped)));
    }
  });
}

TEST_P(EngineJoin, what_needs_all_ranks_fails_and_the_world_goes_on) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;  // nobody else
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (Rank first = 0; first < cluster.size(); ++first) {
      if (rank != first) {
        std::vector<float> values(10, 1.0F);
        for (const Kind kind : {Kind::Broadcast, Kind::Allgather, Kind::Barrier}) {
          Submission submission = allreduce_of(values, "x");
          submission.kind = kind;
          submission.root = 0;
          if (kind == Kind::Barrier) {
            submission.tensors.clear();
          }
          const auto error = run(engine, std::move(submission));
          ASSERT_TRUE(error);
          EXPECT_NE(error->what().find("is not supported with Join at this time"),
                    std::string::npos)
              << error->what();
        }
        auto change = engine.submit({.kind = Kind::AddProcessSet, .ranks = {0}});
        ASSERT_TRUE(static_cast<bool>(change));
        const auto work = finish(engine, *change);
        ASSERT_TRUE(work && work->error);
      }
      ASSERT_NE(join(engine), cluster.size());
      Submission barrier;
      barrier.kind = Kind::Barrier;
      barrier.mode = Mode::Awaited;
      ASSERT_FALSE(run(engine, std::move(barrier)));
    }
    auto change = engine.submit({.kind = Kind::AddProcessSet, .ranks = {0}});
    ASSERT_TRUE(static_cast<bool>(change));
    const auto work = finish(engine, *change);
    ASSERT_TRUE(work && !work->error) << work->error->what();
  });
}

TEST_P(EngineJoin, a_second_join_and_a_submission_meanwhile_are_errors_of_the_caller) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;  // it has ended at once
  Cluster cluster(GetParam());
  const Rank early = cluster.size() - 1;
  auto handle = cluster[early].submit({.kind = Kind::Join});
  ASSERT_TRUE(static_cast<bool>(handle));
  const auto again = cluster[early].submit({.kind = Kind::Join});
  ASSERT_FALSE(static_cast<bool>(again));
  EXPECT_EQ(again.error().code, Code::Duplicate);
  std::vector<float> values(3, 1.0F);
  const auto refused = cluster[early].submit(allreduce_of(values, "x"));
  ASSERT_FALSE(static_cast<bool>(refused));
  EXPECT_EQ(refused.error().code, Code::InvalidArgument);
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank != early) join(engine);
  });
  const auto work = finish(cluster[early], *handle);
  ASSERT_TRUE(work && !work->error);
}

TEST_P(EngineJoin, a_shutdown_or_a_loss_ends_a_pending_join) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;  // it has ended at once
  Cluster cluster(GetParam());
  const Rank last = cluster.size() - 1;
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == last) {
      engine.shutdown();
      return;
    }
    auto handle = engine.submit({.kind = Kind::Join});
    if (!handle) {
      EXPECT_EQ(handle.error().code, Code::Shutdown);
      return;
    }
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error);
    EXPECT_EQ(work->error->code, Code::Shutdown);
  });
}

TEST(Join, the_loss_of_a_rank_ends_a_pending_join) {
  Cluster cluster(Groups{{0, 1, 2}});
  auto handle = cluster[0].submit({.kind = Kind::Join});
  ASSERT_TRUE(static_cast<bool>(handle));
  cluster.cut(1);
  const auto work = finish(cluster[0], *handle);
  ASSERT_TRUE(work && work->error);
  EXPECT_EQ(work->error->code, Code::PeerLost);
}

}  // namespace
}  // namespace farandole::testing

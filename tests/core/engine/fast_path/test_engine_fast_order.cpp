/// What a rank submits while a proposal of its own has no outcome yet comes after it, whatever
/// becomes of the proposal; and all ranks have the fast path, or none.

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>

#include "cluster.h"

namespace farandole::testing {
namespace {

using std::chrono::seconds;

/// What a callback tells.
struct Ending {
  std::binary_semaphore over{0};
  std::optional<Error> error;
};

/// Leaves it to the engine after a moment. Null: it was over at once.
std::shared_ptr<Ending> leave(Engine& engine, Submission submission) {
  auto ending = std::make_shared<Ending>();
  submission.mode = Mode::Callback;
  submission.on_done = [ending](const Work& work) {
    ending->error = work.error;
    ending->over.release();
  };
  const auto handle = engine.submit(std::move(submission));
  EXPECT_TRUE(static_cast<bool>(handle)) << (handle ? "" : handle.error().what());
  return handle && *handle != 0 ? ending : nullptr;
}

void expect_end(Ending& ending) {
  ASSERT_TRUE(ending.over.try_acquire_for(seconds(30))) << "no end";
  EXPECT_FALSE(ending.error) << ending.error->what();
}

void expect_end(Engine& engine, Submission submission) {
  submission.mode = Mode::Awaited;
  const auto handle = engine.submit(std::move(submission));
  ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  const auto work = finish(engine, *handle);
  ASSERT_NE(work, nullptr);
  EXPECT_FALSE(work->error) << work->error->what();
}

/// Until all know it by numbers, it is negotiated.
void learn(Engine& engine, float value) {
  for (int i = 0; i < 2; ++i) {
    std::vector<float> values(4, value);
    expect_end(engine, allreduce_of(values, "x"));
  }
}

EngineOptions quick_to_see_deadlocks() {
  EngineOptions options;
  options.negotiator.deadlock = seconds(5);
  return options;
}

class Order : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Order, ::testing::Values(Groups{{0, 1}}, Groups{{0}, {1}}),
                         world_name);

void stay(Engine& engine, Submission submission) {
  const auto handle = engine.submit(blocking(std::move(submission)));
  ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  if (*handle == 0) return;
  const auto work = finish(engine, *handle);
  ASSERT_NE(work, nullptr);
  ASSERT_FALSE(work->error) << work->error->what();
}

TEST_P(Order, barriers_of_two_threads_of_a_rank_have_two_numbers) {
  Cluster cluster(GetParam(), quick_to_see_deadlocks());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 200 && !engine.failure(); ++round) {
      if (rank == 0) {
        std::jthread other([&] { stay(engine, {.kind = Kind::Barrier}); });
        stay(engine, {.kind = Kind::Barrier});
      } else {
        for (int i = 0; i < 2; ++i) stay(engine, {.kind = Kind::Barrier});
      }
    }
    EXPECT_FALSE(engine.failure()) << engine.failure()->what();
  });
}

/// `regular`: the others refuse the proposal, and take the regular way.
void join_behind_a_proposal(const Groups& groups, bool regular) {
  Cluster cluster(groups, quick_to_see_deadlocks());
  std::latch joined(1);
  cluster.each([&](Rank rank, Engine& engine) {
    learn(engine, 1);
    std::vector<float> values(4, static_cast<float>(rank + 1));
    if (rank == 0) {
      const auto first = leave(engine, allreduce_of(values, "x"));
      ASSERT_NE(first, nullptr);
      auto join = engine.submit({.kind = Kind::Join, .mode = Mode::Awaited});
      ASSERT_TRUE(static_cast<bool>(join)) << join.error().what();
      std::vector<float> late(4, 1.0F);
      const auto refused = engine.submit(allreduce_of(late, "late"));
      ASSERT_FALSE(static_cast<bool>(refused));
      EXPECT_NE(refused.error().what().find("This rank has joined"), std::string::npos);
      joined.count_down();
      expect_end(*first);
      const auto work = finish(engine, *join);
      ASSERT_NE(work, nullptr);
      EXPECT_FALSE(work->error) << work->error->what();
    } else {
      joined.wait();
      if (regular) {
        expect_end(engine, allreduce_of(values, "x"));
      } else {
        stay(engine, allreduce_of(values, "x"));
      }
      expect_end(engine, {.kind = Kind::Join});
    }
    EXPECT_EQ(values, std::vector<float>(4, 3.0F)) << "rank " << rank;
  });
}

TEST_P(Order, a_join_behind_a_proposal_that_is_agreed_on) {
  join_behind_a_proposal(GetParam(), false);
}

TEST_P(Order, a_join_behind_a_proposal_that_is_refused) {
  join_behind_a_proposal(GetParam(), true);
}

TEST_P(Order, a_join_behind_a_proposal_ends_with_the_world) {
  Cluster cluster(GetParam(), quick_to_see_deadlocks());
  std::latch joined(1);
  cluster.each([&](Rank rank, Engine& engine) {
    learn(engine, 1);
    std::vector<float> values(4, 1.0F);
    if (rank == 0) {
      const auto first = leave(engine, allreduce_of(values, "x"));
      ASSERT_NE(first, nullptr);
      auto join = engine.submit({.kind = Kind::Join, .mode = Mode::Awaited});
      ASSERT_TRUE(static_cast<bool>(join)) << join.error().what();
      joined.count_down();
      ASSERT_TRUE(first->over.try_acquire_for(seconds(30)));
      EXPECT_TRUE(first->error.has_value());
      const auto work = finish(engine, *join);
      ASSERT_NE(work, nullptr);
      EXPECT_TRUE(work->error.has_value());
    } else {
      joined.wait();
      engine.shutdown({.reason = wire::Departure::Reason::Failed, .text = "it failed"});
    }
  });
}

/// One rank would see 16 others elsewhere, and the 16 see one.
TEST(EngineFastOrder, hosts_of_unequal_size_have_the_fast_path_all_or_none) {
  Groups groups(2);
  for (Rank rank = 0; rank < 16; ++rank) groups[0].push_back(rank);
  groups[1] = {16};
  Cluster cluster(groups, quick_to_see_deadlocks());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 4; ++round) {
      std::vector<float> values(4, static_cast<float>(rank + round));
      stay(engine, allreduce_of(values, "x"));
      ASSERT_EQ(values, std::vector<float>(4, 136.0F + 17.0F * static_cast<float>(round)));
    }
  });
}

}  // namespace
}  // namespace farandole::testing

/// Engines as threads of one process: ranks that bring nothing to an operation.

#include <gtest/gtest.h>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{{{0, 1}}, {{0, 1, 2, 3}}, {{0}, {1}, {2}}, {{0, 1}, {2, 3}}};

class EngineAbsent : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EngineAbsent, ::testing::ValuesIn(kWorlds), world_name);

Submission with(Submission submission, std::size_t place, bool absent) {
  Tensor& tensor = submission.tensors[place];
  tensor.absent = absent;
  if (absent) tensor.in = nullptr;
  return submission;
}

/// The work, once it is over.
std::shared_ptr<Work> run(Engine& engine, Submission submission) {
  auto handle = engine.submit(std::move(submission));
  EXPECT_TRUE(static_cast<bool>(handle)) << (handle ? "" : handle.error().what());
  if (!handle) return nullptr;
  auto work = finish(engine, *handle);
  EXPECT_TRUE(work && !work->error) << (work && work->error ? work->error->what() : "");
  return work;
}

TEST_P(EngineAbsent, nothing_runs_where_no_rank_brings_anything) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    const auto size = static_cast<float>(cluster.size());
    // Step by step one rank more brings something, and anew: the first time, and from the cache.
    for (int step = 0; step < 3 * (cluster.size() + 1); ++step) {
      const int present = step % (cluster.size() + 1);
      const bool absent = rank >= present;
      for (const std::size_t count : {std::size_t{3}, std::size_t{70'000}}) {
        std::vector<float> values(count, absent ? 0.0F : size);
        auto submission = allreduce_of(values, "values" + std::to_string(count), step % 2 == 0);
        submission.op = ReduceOp::Average;
        const auto work = run(engine, with(std::move(submission), 0, absent));
        ASSERT_TRUE(work);
        ASSERT_EQ(work->outputs[0].absent, present == 0) << "step " << step;
        ASSERT_EQ(values, std::vector<float>(count, static_cast<float>(present)));
      }
      // Nothing of that is left in the way of those who call and wait.
      std::vector<float> plain(5, 1.0F);
      auto blocking = allreduce_of(plain, "plain");
      blocking.mode = Mode::Blocking;
      const auto handle = engine.submit(std::move(blocking));
      ASSERT_TRUE(static_cast<bool>(handle));
      if (*handle != 0) {
        ASSERT_FALSE(finish(engine, *handle)->error);
      }
      ASSERT_EQ(plain[0], size);
    }
  });
}

TEST_P(EngineAbsent, members_of_a_group_are_absent_one_by_one) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int step = 0; step < 6; ++step) {
      // The first member is there on rank 0, the second nowhere, the third in every other step.
      const std::array<bool, 3> absent{rank != 0, true, step % 2 == 0};
      std::array<std::vector<float>, 3> values;
      Submission submission;
      submission.name = "group";
      submission.grouped = true;
      submission.mode = Mode::Awaited;
      for (std::size_t i = 0; i < 3; ++i) {
        values[i].assign(4 + i, absent[i] ? 0.0F : 1.0F);
        submission.tensors.push_back(tensor_of(values[i]));
        submission = with(std::move(submission), i, absent[i]);
      }
      const auto work = run(engine, std::move(submission));
      ASSERT_TRUE(work);
      const std::array<bool, 3> nobody{false, true, step % 2 == 0};
      for (std::size_t i = 0; i < 3; ++i) ASSERT_EQ(work->outputs[i].absent, nobody[i]) << i;
      ASSERT_EQ(values[0][0], 1.0F);
      ASSERT_EQ(values[1][0], 0.0F);
      ASSERT_EQ(values[2][0], step % 2 == 0 ? 0.0F : static_cast<float>(cluster.size()));
    }
  });
}

TEST_P(EngineAbsent, a_rank_that_has_joined_brings_nothing_either) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank != 0) {
      std::vector<float> values(9, 0.0F), one(9, rank == 1 ? 1.0F : 0.0F);
      const auto nothing = run(engine, with(allreduce_of(values, "nothing"), 0, true));
      ASSERT_TRUE(nothing);
      ASSERT_TRUE(nothing->outputs[0].absent);
      const auto some = run(engine, with(allreduce_of(one, "some"), 0, rank != 1));
      ASSERT_TRUE(some);
      ASSERT_FALSE(some->outputs[0].absent);
      ASSERT_EQ(one, std::vector<float>(9, 1.0F));
    }
    const auto handle = engine.submit({.kind = Kind::Join});
    ASSERT_TRUE(static_cast<bool>(handle));
    ASSERT_FALSE(finish(engine, *handle)->error);
  });
}

}  // namespace
}  // namespace farandole::testing

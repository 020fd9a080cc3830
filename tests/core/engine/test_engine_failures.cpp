/// Ranks that fall silent: who notices, and what everybody is told.

#include <set>

#include "cluster.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

EngineOptions quick() {
  EngineOptions options;
  options.heartbeat = {.warning = milliseconds(250), .limit = milliseconds(1000)};
  options.log_level = LogLevel::Fatal;
  return options;
}

struct Silence {
  Groups groups;
  Rank asleep;
};

class SilentRank : public ::testing::TestWithParam<Silence> {};

INSTANTIATE_TEST_SUITE_P(Worlds, SilentRank,
                         ::testing::Values(Silence{{{0, 1, 2}}, 1}, Silence{{{0, 1, 2}}, 0},
                                           Silence{{{0}, {1}, {2}}, 2}, Silence{{{0}, {1}, {2}}, 0},
                                           Silence{{{0, 1}, {2, 3}}, 2},
                                           Silence{{{0, 1}, {2, 3}}, 3},
                                           Silence{{{0, 1}, {2, 3}}, 1},
                                           Silence{{{0, 1}, {2, 3}}, 0}),
                         [](const auto& silence) {
                           std::string name = std::to_string(silence.param.asleep) + "_of";
                           for (const auto& group : silence.param.groups) {
                             name += "_";
                             for (const Rank rank : group) name += std::to_string(rank);
                           }
                           return name;
                         });

TEST_P(SilentRank, is_named_on_every_other_rank_with_what_it_owes) {
  const Rank asleep = GetParam().asleep;
  Cluster cluster(GetParam().groups, quick(), asleep);
  const auto start = Clock::now();
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == asleep) return;
    std::vector<float> values(3, 1.0F);
    auto handle = engine.submit(allreduce_of(values, "x"));
    if (!handle) {  // the others were faster
      EXPECT_EQ(handle.error().peer, asleep) << handle.error().what();
      return;
    }
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error);
    const Error& error = *work->error;
    EXPECT_EQ(error.code, Code::PeerLost);
    EXPECT_EQ(error.peer, asleep) << error.what();
    EXPECT_EQ(error.tensor, "allreduce.x");
    EXPECT_NE(std::find(error.missing.begin(), error.missing.end(), asleep), error.missing.end());
    EXPECT_NE(error.message.find("rank " + std::to_string(asleep) + " on host host"),
              std::string::npos)
        << error.message;
  });
  EXPECT_GE(Clock::now() - start, milliseconds(500)) << "a rank that is late is not lost";
}

TEST(Heartbeats, the_ranks_of_a_tree_get_one_text) {
  Cluster cluster(Groups{{0, 1}, {2, 3}, {4}}, quick(), 3);
  std::mutex mutex;
  std::set<std::string> texts;
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 3) return;
    std::vector<float> values(3, 1.0F);
    auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(static_cast<bool>(handle));
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error);
    const std::lock_guard lock(mutex);
    texts.insert(work->error->what());
  });
  EXPECT_EQ(texts.size(), 1U) << *texts.begin() << "\n" << *texts.rbegin();
}

TEST(Heartbeats, a_world_that_does_nothing_for_long_stays_alive) {
  Cluster cluster(Groups{{0, 1}, {2}}, quick());
  std::this_thread::sleep_for(seconds(3));  // three times the limit: this is what is tested
  cluster.each([&](Rank, Engine& engine) {
    std::vector<float> values(3, 1.0F);
    auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(static_cast<bool>(handle));
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work);
    EXPECT_FALSE(work->error) << work->error->what();
  });
}

TEST(Heartbeats, a_rank_that_is_merely_late_is_no_failure) {
  Cluster cluster(Groups{{0, 1}, {2}}, quick());
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 1) std::this_thread::sleep_for(seconds(3));  // the script computes
    std::vector<float> values(3, 1.0F);
    auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(static_cast<bool>(handle));
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work);
    EXPECT_FALSE(work->error) << work->error->what();
  });
}

/// Such calls need no driver: the engine's thread is kept away, and nobody else looks after beats.
class CloseSuccession : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CloseSuccession,
                         ::testing::Values(Groups{{0, 1}}, Groups{{0}, {1}}, Groups{{0, 1}, {2}}),
                         world_name);

TEST_P(CloseSuccession, of_calls_does_not_silence_a_rank) {
  Cluster cluster(GetParam(), quick());
  const auto end = Clock::now() + seconds(3);
  std::atomic<bool> over{false};
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> values(1, 1.0F);
    std::vector<float> more(1, 0.0F);
    while (more[0] == 0.0F) {
      if (rank == 0 && Clock::now() >= end) over.store(true);
      more[0] = rank == 0 && over.load() ? 1.0F : 0.0F;
      for (auto* buffer : {&values, &more}) {
        Submission submission = allreduce_of(*buffer, buffer == &more ? "more" : "x");
        const auto handle = engine.submit(blocking(std::move(submission)));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        if (*handle == 0) continue;
        const auto work = finish(engine, *handle);
        ASSERT_TRUE(work && !work->error) << work->error->what();
      }
    }
  });
}

TEST(Heartbeats, a_shutdown_beside_a_silent_rank_ends_with_its_detection) {
  Cluster cluster(Groups{{0, 1}, {2}}, quick(), 2);
  const auto start = Clock::now();
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank != 2) engine.shutdown();
  });
  EXPECT_LT(Clock::now() - start, seconds(10));
}

TEST(Heartbeats, none_are_watched_if_they_are_off) {
  EngineOptions options = quick();
  options.heartbeat.limit = Duration::zero();
  Cluster cluster(Groups{{0, 1}}, options, 1);
  std::vector<float> values(3, 1.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "x"));
  ASSERT_TRUE(static_cast<bool>(handle));
  EXPECT_EQ(cluster[0].wait(*handle, Clock::now() + seconds(2)), std::optional(false));
  cluster.cut(1);
  const auto work = finish(cluster[0], *handle);
  ASSERT_TRUE(work && work->error);
  EXPECT_EQ(work->error->peer, 1);
}

}  // namespace
}  // namespace farandole::testing

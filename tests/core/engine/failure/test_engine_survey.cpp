/// Operations that make no progress: those that only wait for ranks that are busy go on, those that
/// are stuck end, and the right ranks are named.

#include <poll.h>

#include <latch>
#include <set>

#include "cluster.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLimit = milliseconds(300);

EngineOptions impatient() {
  EngineOptions options;
  options.operation_timeout = kLimit;
  options.heartbeat.limit = Duration::zero();  // only the limit of operations is looked at
  options.log_level = LogLevel::Fatal;
  return options;
}

class Busy : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Busy,
                         ::testing::Values(Groups{{0, 1, 2}}, Groups{{0}, {1}, {2}},
                                           Groups{{0, 1}, {2}}, Groups{{0}, {1, 2}}),
                         world_name);

/// Ranks 0 and 1 have work for longer than the limit in their set when rank 2, which has none,
/// begins an operation with rank 1.
TEST_P(Busy, ranks_of_another_set_are_waited_for) {
  EngineOptions options = impatient();
  options.negotiator.process_sets = {{0, 1}, {1, 2}};
  options.negotiator.fusion_threshold_bytes = 0;
  Cluster cluster(GetParam(), options);
  constexpr std::size_t kElements = std::size_t{4} << 20;
  std::array<Duration, 3> took{};
  int backlog = 0;  // by rank 0, before the latch
  std::latch measured(3);
  std::latch submitted(3);
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> large(rank == 2 ? 1 : kElements);
    std::vector<float> small(3, static_cast<float>(rank));
    std::vector<Handle> handles;
    const auto submit_large = [&](const std::string& name, bool waited) {
      Submission submission = allreduce_of(large, name, waited);
      submission.process_set = 1;
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      handles.push_back(*handle);
    };
    // As much work as takes three times the limit, on whatever machine; others may slow one down.
    if (rank != 2) {
      Duration each = Duration::max();
      for (int i = 0; i < 8; ++i) {
        const auto began = Clock::now();
        submit_large("measured" + std::to_string(i), true);
        EXPECT_TRUE(finish(engine, handles.back()));
        each = std::min<Duration>(each, Clock::now() - began);
      }
      if (rank == 0)
        backlog = static_cast<int>(std::clamp<std::int64_t>(3 * kLimit / each, 4, 400));
      handles.clear();
    }
    measured.arrive_and_wait();
    for (int i = 0; i < backlog && rank != 2; ++i) {
      submit_large("large" + std::to_string(i), i + 1 == backlog);
    }
    submitted.arrive_and_wait();  // what comes now is dispatched behind all that
    const auto start = Clock::now();
    if (rank != 0) {
      Submission submission = allreduce_of(small, "small");
      submission.process_set = 2;
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      handles.push_back(*handle);
    }
    for (const Handle handle : handles) {
      const auto work = finish(engine, handle);
      ASSERT_TRUE(work);
      ASSERT_FALSE(work->error) << "rank " << rank << ": " << work->error->what();
    }
    took[static_cast<std::size_t>(rank)] = Clock::now() - start;
    if (rank != 0) {
      EXPECT_EQ(small, std::vector<float>(3, 3.0F));
    }
  });
  EXPECT_GT(took[2], kLimit) << "too little work to show anything";
}

struct Cut {
  Groups groups;
  std::pair<Rank, Rank> between;
};

class CutLink : public ::testing::TestWithParam<Cut> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CutLink,
                         ::testing::Values(Cut{{{0}, {1}, {2}}, {1, 2}},
                                           Cut{{{0}, {1}, {2}}, {0, 2}},
                                           Cut{{{0, 1}, {2, 3}}, {0, 2}},
                                           Cut{{{0}, {1}, {2}, {3}}, {1, 3}}),
                         [](const auto& cut) {
                           return world_name({cut.param.groups, 0}) + "_between_" +
                                  std::to_string(cut.param.between.first) + "_and_" +
                                  std::to_string(cut.param.between.second);
                         });

/// The ranks at both ends live, and reach everybody else.
TEST_P(CutLink, is_told_by_its_two_ends) {
  const Rank one = GetParam().between.first;
  const Rank other = GetParam().between.second;
  Cluster cluster(GetParam().groups, impatient(), -1, {}, {GetParam().between});
  std::mutex mutex;
  std::set<std::string> texts;
  const auto start = Clock::now();
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> values(1 << 20, 1.0F);
    auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error);
    const Error& error = *work->error;
    EXPECT_EQ(error.code, Code::Timeout) << "rank " << rank << ": " << error.what();
    EXPECT_EQ(error.missing, (std::vector<Rank>{one, other})) << error.what();
    const std::lock_guard lock(mutex);
    texts.insert(error.what());
  });
  EXPECT_LT(Clock::now() - start, seconds(10));
  ASSERT_EQ(texts.size(), 1U) << *texts.begin() << "\n" << *texts.rbegin();
  const auto& options = GetParam();
  const auto name = [&](Rank rank) {
    for (std::size_t g = 0; g < options.groups.size(); ++g) {
      if (std::ranges::count(options.groups[g], rank) != 0) {
        return "rank " + std::to_string(rank) + " on host host" + std::to_string(g);
      }
    }
    return std::string();
  };
  EXPECT_NE(texts.begin()->find(name(one) + " and " + name(other) + " wait for each other"),
            std::string::npos)
      << *texts.begin();
}

}  // namespace
}  // namespace farandole::testing

/// Blocking operations that ranks agree on by themselves: beside everything else that ranks do.

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <latch>
#include <random>
#include <semaphore>

#include "cluster.h"
#include "engine/fast_path/fast_path.h"
#include "random_numbers.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;

const std::vector<Groups> kWorlds{
    {{0}},      {{0, 1}},      {{0, 1, 2}},          {{0, 1, 2, 3}},
    {{0}, {1}}, {{0, 1}, {2}}, {{0}, {1}, {2}, {3}}, {{0, 3}, {1, 2}}};

class ProposalWorld : public ::testing::TestWithParam<Groups> {};

std::string world_name(const ::testing::TestParamInfo<Groups>& info) {
  std::string name;
  for (const auto& group : info.param) {
    if (!name.empty()) name += "_";
    for (const Rank rank : group) name += std::to_string(rank);
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProposalWorld, ::testing::ValuesIn(kWorlds), world_name);

/// Launched, and waited for here.
std::optional<Error> launch(Engine& engine, Submission submission) {
  struct Ending {
    std::binary_semaphore over{0};
    std::optional<Error> error;
  };
  const auto ending = std::make_shared<Ending>();
  submission.mode = Mode::Callback;
  submission.on_done = [ending](const Work& work) {
    ending->error = work.error;
    ending->over.release();
  };
  auto handle = engine.submit(std::move(submission));
  if (!handle) return std::move(handle).error();
  if (*handle == 0) {
    EXPECT_FALSE(ending->over.try_acquire()) << "told of what was over at once";
    return std::nullopt;
  }
  engine.take(*handle);
  if (!ending->over.try_acquire_for(std::chrono::seconds(30))) return Error{.message = "no end"};
  return ending->error;
}

/// Runs to the end, this way or that; what went wrong, if anything did.
std::optional<Error> run(Engine& engine, Submission submission) {
  thread_local std::minstd_rand choice(static_cast<unsigned>(engine.rank()) + 1);
  if (choice() / 7 % 2 == 0) return launch(engine, std::move(submission));
  auto handle = engine.submit(blocking(std::move(submission)));
  if (!handle) return std::move(handle).error();
  if (*handle == 0) return std::nullopt;
  const auto work = finish(engine, *handle);
  if (!work) return Error{.message = "no end"};
  return work->error;
}

template <typename T>
void expect_sum(Engine& engine, Rank rank, int size, const std::string& name, std::size_t count,
                int salt) {
  std::vector<T> values(count, static_cast<T>(rank + salt));
  const auto error = run(engine, allreduce_of(values, name));
  ASSERT_FALSE(error) << error->what();
  const auto want = static_cast<T>(size * (size - 1) / 2 + size * salt);
  for (const T value : values) ASSERT_EQ(value, want) << name << " of " << count;
}

/// A group of `floats`, `integers` and a few more floats.
void expect_mixed_group(Engine& engine, Rank rank, int size, const std::string& name,
                        std::size_t floats, std::size_t integers) {
  std::vector<float> one(floats, static_cast<float>(rank));
  std::vector<std::int64_t> two(integers, rank);
  std::vector<float> three(5, static_cast<float>(2 * rank));
  Submission submission;
  submission.name = name;
  submission.grouped = true;
  submission.tensors = {tensor_of(one), tensor_of(two), tensor_of(three)};
  const auto error = run(engine, std::move(submission));
  ASSERT_FALSE(error) << error->what();
  const int want = size * (size - 1) / 2;
  for (float value : one) ASSERT_EQ(value, static_cast<float>(want));
  for (std::int64_t value : two) ASSERT_EQ(value, want);
  for (float value : three) ASSERT_EQ(value, static_cast<float>(2 * want));
}

/// Goes the regular way, and is waited for here.
void expect_sum_of_submitted(Engine& engine, Rank rank, int size, const std::string& name,
                             std::size_t count, int salt) {
  std::vector<float> values(count, static_cast<float>(rank + salt));
  auto handle = engine.submit(allreduce_of(values, name, false));
  ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  const auto work = finish(engine, *handle);
  ASSERT_TRUE(work);
  ASSERT_FALSE(work->error) << work->error->what();
  const auto want = static_cast<float>(size * (size - 1) / 2 + size * salt);
  for (const float value : values) ASSERT_EQ(value, want) << name << " of " << count;
}

Submission barrier() {
  Submission submission;
  submission.kind = Kind::Barrier;
  return submission;
}

TEST_P(ProposalWorld, sums_of_all_sizes_named_and_not) {
  Cluster cluster(GetParam());
  const std::uint64_t wanted = cluster.size() > 1 ? 101 : 0;  // they agree by themselves
  until_fast(cluster, wanted, [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 300; ++round) {
      const auto count = static_cast<std::size_t>(1 + round * round % 6000);
      expect_sum<float>(engine, rank, cluster.size(), "x" + std::to_string(count), count, round);
      expect_sum<float>(engine, rank, cluster.size(), "same", 17, round);
      expect_sum<std::int64_t>(engine, rank, cluster.size(), "", 3, round);
      ASSERT_FALSE(run(engine, barrier()));
    }
  });
  if (cluster.size() > 1) {
    EXPECT_EQ(fast_operations(cluster[0]), fast_operations(cluster[1]));
  } else {
    EXPECT_EQ(fast_operations(cluster[0]), 0U);
  }
}

TEST(EngineFastPath, large_operations_between_hosts_start_once_all_have_offered_them) {
  for (const Groups& groups : {Groups{{0}, {1}}, Groups{{0}, {1}, {2}}, Groups{{0, 1}, {2, 3}}}) {
    Cluster cluster(groups);
    cluster.each([&](Rank rank, Engine& engine) {
      for (int round = 0; round < 40; ++round) {
        expect_sum<float>(engine, rank, cluster.size(), "x", 30000, round);
        expect_sum<float>(engine, rank, cluster.size(), "", 5000 + 100 * (round % 4), round);
        expect_sum<float>(engine, rank, cluster.size(), "small", 3, round);
        if (round % 7 == 0) {
          expect_sum_of_submitted(engine, rank, cluster.size(), "regular", 20000, round);
        }
      }
    });
  }
}

TEST_P(ProposalWorld, results_are_those_of_the_regular_way_bit_for_bit) {
  Cluster cluster(GetParam());
  const std::uint64_t wanted = cluster.size() > 1 ? 51 : 0;  // else both went the same way
  until_fast(cluster, wanted, [&](Rank rank, Engine& engine) {
    reference::QuickRandom random(static_cast<std::uint64_t>(rank));
    for (int round = 0; round < 100; ++round) {
      // Every shape comes ten times: the first time it is negotiated, then proposed.
      std::vector<float> one(1 + static_cast<std::size_t>(round % 10) * 33);
      for (float& value : one) value = reference::normal_of(random()) * 1e3F;
      std::vector<float> other = one;
      const auto scaled = [&](std::vector<float>& values, const char* name) {
        Submission submission = allreduce_of(values, name + std::to_string(round % 10));
        submission.op = ReduceOp::Average;
        submission.tensors[0].shape = {static_cast<std::int64_t>(values.size())};
        submission.prescale = 0.3;
        submission.postscale = 1.7;
        return submission;
      };
      ASSERT_FALSE(run(engine, scaled(one, "r")));
      auto handle = engine.submit(scaled(other, "s"));
      ASSERT_TRUE(static_cast<bool>(handle));
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
      ASSERT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0);
    }
  });
}

TEST_P(ProposalWorld, tensors_without_elements) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 5; ++round) {
      expect_sum<float>(engine, rank, cluster.size(), "empty", 0, round);
      expect_sum<float>(engine, rank, cluster.size(), "x", 3, round);
      expect_mixed_group(engine, rank, cluster.size(), "g", 0, 7);
      expect_mixed_group(engine, rank, cluster.size(), "h", 5, 0);
    }
  });
}

TEST_P(ProposalWorld, groups_of_as_many_tensors_as_can_be_offered_and_more) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (const std::size_t count : {1023U, 1024U, 1025U, 1500U}) {
      for (int again = 0; again < 3; ++again) {
        std::vector<std::vector<float>> tensors;
        Submission submission;
        submission.name = "g" + std::to_string(count);
        submission.grouped = true;
        for (std::size_t i = 0; i < count; ++i) {
          tensors.push_back({static_cast<float>(rank), static_cast<float>(i)});
          submission.tensors.push_back(tensor_of(tensors.back()));
        }
        const auto error = run(engine, std::move(submission));
        ASSERT_FALSE(error) << error->what();
        const auto size = static_cast<float>(cluster.size());
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(tensors[i][0], size * (size - 1) / 2);
          ASSERT_EQ(tensors[i][1], size * static_cast<float>(i));
        }
      }
    }
  });
}

/// What a set does is not proposed to the world, though names, shapes and calls are the same.
TEST_P(ProposalWorld, sets_beside_the_world) {
  EngineOptions options;
  const int size = [] {
    std::size_t ranks = 0;
    for (const auto& group : GetParam()) ranks += group.size();
    return static_cast<int>(ranks);
  }();
  if (size == 1) return;  // the only set is the world
  options.negotiator.process_sets = {{0}, {size - 1}};
  Cluster cluster(GetParam(), options);
  cluster.each([&](Rank rank, Engine& engine) {
    const std::int32_t own = rank == 0 ? 1 : rank == size - 1 ? 2 : 0;
    for (int round = 0; round < 20; ++round) {
      for (const std::string name : {"x", ""}) {
        expect_sum<float>(engine, rank, size, name, 4, round);
        if (own == 0) continue;
        std::vector<float> values(4, static_cast<float>(rank + 1));
        Submission submission = allreduce_of(values, name);
        submission.process_set = own;
        const auto error = run(engine, std::move(submission));
        ASSERT_FALSE(error) << error->what();
        for (const float value : values) ASSERT_EQ(value, static_cast<float>(rank + 1));
      }
    }
  });
}

TEST_P(ProposalWorld, groups_of_different_types) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 100; ++round) {
      const std::string name = round % 3 == 0 ? "" : "g" + std::to_string(round % 3);
      expect_mixed_group(engine, rank, cluster.size(), name, 5, 7);
    }
  });
}

TEST_P(ProposalWorld, large_groups_of_different_types) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      expect_mixed_group(engine, rank, cluster.size(), "g", 30000, 20000);
    }
  });
}

TEST_P(ProposalWorld, groups_at_the_border_of_what_is_small) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    // 127 tensors of a few bytes, each of which begins on a line of its own, beside a long one.
    for (const std::size_t longest : {3000U, 3076U, 3080U, 3084U, 3800U, 4000U, 4100U}) {
      for (int again = 0; again < 3; ++again) {
        std::vector<std::vector<float>> tensors(128, std::vector<float>(1, 1.0F));
        tensors[60].assign(longest, static_cast<float>(rank));
        Submission submission;
        submission.name = "g" + std::to_string(longest);
        submission.grouped = true;
        for (auto& values : tensors) submission.tensors.push_back(tensor_of(values));
        const auto error = run(engine, std::move(submission));
        ASSERT_FALSE(error) << error->what();
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          const int want = i == 60 ? cluster.size() * (cluster.size() - 1) / 2 : cluster.size();
          for (float value : tensors[i]) ASSERT_EQ(value, static_cast<float>(want));
        }
      }
    }
  });
}

/// Every rank does the same, in an order that it chooses by itself where it may; of one and the
/// same operation, too, some ranks propose it and others submit it.
TEST_P(ProposalWorld, beside_asynchronous_operations) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::mt19937 own(static_cast<unsigned>(rank));
    for (int round = 0; round < 200; ++round) {
      std::vector<float> late(3, static_cast<float>(rank));
      const bool first = own() % 2 == 0;
      std::optional<Result<Handle>> handle;
      if (first) handle = engine.submit(allreduce_of(late, "late", false));
      expect_sum<float>(engine, rank, cluster.size(), "x", 2, round);
      if (!first) handle = engine.submit(allreduce_of(late, "late", false));
      if (own() % 2 == 0) engine.poll(**handle);
      const std::string name = "y" + std::to_string(round % 8);
      if (own() % 3 == 0)
        expect_sum_of_submitted(engine, rank, cluster.size(), name, 2, round);
      else
        expect_sum<float>(engine, rank, cluster.size(), name, 2, round);
      const auto work = finish(engine, **handle);
      ASSERT_TRUE(work && !work->error);
      for (const float value : late) {
        ASSERT_EQ(value, static_cast<float>(cluster.size() * (cluster.size() - 1) / 2));
      }
    }
  });
}

TEST_P(ProposalWorld, several_threads_of_each_rank) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 100; ++round) {
          expect_sum<float>(engine, rank, cluster.size(), "t" + std::to_string(t), 4, round);
        }
      });
    }
  });
}

TEST_P(ProposalWorld, one_kept_waiting_by_ranks_that_come_otherwise) {
  Cluster cluster(GetParam());
  if (cluster.size() == 1) return;  // nobody to wait for
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      expect_sum<float>(engine, rank, cluster.size(), "x", 4, round);
      expect_sum<float>(engine, rank, cluster.size(), "x", 4, round);
      if (rank == 0) {
        expect_sum<float>(engine, rank, cluster.size(), "x", 4, 1);  // long before the others
      } else {
        std::this_thread::sleep_for(milliseconds(round * 120));
        expect_sum_of_submitted(engine, rank, cluster.size(), "x", 4, 1);
      }
    }
  });
}

TEST_P(ProposalWorld, late_ranks_are_waited_for) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 6; ++round) {
      if (rank == round % cluster.size()) std::this_thread::sleep_for(milliseconds(60 * round));
      expect_sum<float>(engine, rank, cluster.size(), "x", 4, round);
    }
  });
}

TEST_P(ProposalWorld, different_shapes_fail_on_every_rank_and_the_world_goes_on) {
  Cluster cluster(GetParam());
  if (cluster.size() == 1) return;  // nobody to differ from
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      expect_sum<float>(engine, rank, cluster.size(), "x", 4, round);
      expect_sum<float>(engine, rank, cluster.size(), "x", 5, round);
      std::vector<float> values(rank == 0 ? 4 : 5);
      const auto error = run(engine, allreduce_of(values, "x"));
      ASSERT_TRUE(error);
      ASSERT_EQ(error->code, Code::Mismatch) << error->what();
    }
  });
}

/// Every form of the group is known to all; what differs is a later member of it.
TEST_P(ProposalWorld, groups_whose_later_tensors_differ_fail_on_every_rank) {
  Cluster cluster(GetParam());
  if (cluster.size() == 1) return;  // nobody to differ from
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> first(4);
    std::vector<float> second;
    const auto group = [&](std::size_t length) {
      first.assign(4, 1.0F);
      second.assign(length, 1.0F);
      Submission submission;
      submission.name = "g";
      submission.grouped = true;
      submission.tensors = {tensor_of(first), tensor_of(second)};
      return run(engine, std::move(submission));
    };
    for (int round = 0; round < 6; ++round) {
      for (const std::size_t length : {5U, 5U, 6U, 6U}) {
        const auto error = group(length);
        ASSERT_FALSE(error) << error->what();
        for (const float value : second) ASSERT_EQ(value, static_cast<float>(cluster.size()));
      }
      const auto error = group(rank == round % cluster.size() ? 5 : 6);
      ASSERT_TRUE(error) << "the second tensors differ";
      ASSERT_EQ(error->code, Code::Mismatch) << error->what();
    }
  });
}

TEST(EngineFastPath, what_two_ranks_of_a_host_offer_has_64_KiB) {
  for (const std::size_t count : {16384U, 16385U}) {
    Cluster cluster({{0, 1}});
    cluster.each([&](Rank rank, Engine& engine) {
      for (int round = 0; round < 20; ++round) {
        expect_sum<float>(engine, rank, cluster.size(), "x", count, round);
      }
    });
    const auto paths = cluster[0].paths();
    const auto proposed = paths.find("shm.fast");
    if (count == 16384) {
      ASSERT_NE(proposed, paths.end());
      EXPECT_GT(proposed->second.operations, 0U);
      EXPECT_EQ(proposed->second.bytes, proposed->second.operations * count * sizeof(float));
    } else {
      EXPECT_TRUE(proposed == paths.end() || proposed->second.operations == 0);
    }
  }
}

TEST_P(ProposalWorld, a_rank_that_has_joined_takes_part_with_zeros) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      expect_sum<float>(engine, rank, cluster.size(), "x", 4, 0);
      if (rank != 0) {
        for (int more = 0; more < 5 * rank; ++more) {
          std::vector<float> values(4, static_cast<float>(rank));
          const auto error = run(engine, allreduce_of(values, "more"));
          ASSERT_FALSE(error) << error->what();
          int want = 0;  // the others have joined: zeros
          for (Rank r = 1; r < cluster.size(); ++r) want += more < 5 * r ? r : 0;
          for (const float value : values) ASSERT_EQ(value, static_cast<float>(want)) << more;
        }
      }
      auto joined = engine.submit({.kind = Kind::Join});
      ASSERT_TRUE(static_cast<bool>(joined));
      const auto work = finish(engine, *joined);
      ASSERT_TRUE(work && !work->error);
    }
  });
}

TEST(EngineFastPath, a_name_on_offer_is_in_flight) {
  Cluster cluster({{0, 1}});
  std::latch proposed(1);
  cluster.each([&](Rank rank, Engine& engine) {
    expect_sum<float>(engine, rank, 2, "x", 4, 0);
    if (rank == 1) {
      proposed.wait();
      expect_sum<float>(engine, rank, 2, "x", 4, 0);
      return;
    }
    std::vector<float> values(4, 0.0F);
    Submission submission = allreduce_of(values, "x");
    auto handle =
        engine.submit(blocking(std::move(submission)));  // until it would look for signals
    ASSERT_TRUE(handle && *handle != 0);
    std::vector<float> others(4, 0.0F);
    auto again = engine.submit(allreduce_of(others, "x"));
    EXPECT_FALSE(static_cast<bool>(again));
    if (!again) {
      EXPECT_EQ(again.error().code, Code::Duplicate);
    }
    proposed.count_down();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error);
    EXPECT_EQ(values[0], 1.0F);
  });
}

class ProposalEnd : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ProposalEnd,
                         ::testing::Values(Groups{{0, 1, 2}}, Groups{{0}, {1}, {2}},
                                           Groups{{0, 2}, {1}}),
                         world_name);

TEST_P(ProposalEnd, a_shutdown_elsewhere_ends_what_is_on_offer) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    expect_sum<float>(engine, rank, 3, "x", 4, 0);
    expect_sum<float>(engine, rank, 3, "x", 4, 0);
    if (rank == 1) {
      engine.shutdown();
      return;
    }
    std::vector<float> values(4);
    const auto error = run(engine, allreduce_of(values, "x"));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, Code::Shutdown) << error->what();
  });
}

TEST(EngineFastPath, a_lost_rank_ends_what_is_on_offer) {
  Cluster cluster({{0, 1, 2}});
  std::latch ready(3);
  cluster.each([&](Rank rank, Engine& engine) {
    expect_sum<float>(engine, rank, 3, "x", 4, 0);
    expect_sum<float>(engine, rank, 3, "x", 4, 0);
    ready.arrive_and_wait();
    if (rank == 1) {
      cluster.cut(1);
      return;
    }
    std::vector<float> values(4);
    const auto error = run(engine, allreduce_of(values, "x"));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, Code::PeerLost) << error->what();
    EXPECT_EQ(error->peer, 1);
  });
}

TEST(EngineFastPath, nothing_is_proposed_in_a_world_that_has_failed) {
  Cluster cluster({{0, 1, 2}});
  std::latch ready(3);
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) expect_sum<float>(engine, rank, 3, "x", 4, 0);
    ready.arrive_and_wait();
    if (rank == 1) {
      cluster.cut(1);
      return;
    }
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (!engine.failure() && Clock::now() < until) std::this_thread::yield();
    std::vector<float> values(4);
    const auto refused = engine.submit(blocking(allreduce_of(values, "x")));
    ASSERT_FALSE(static_cast<bool>(refused));
    EXPECT_EQ(refused.error().code, Code::PeerLost) << refused.error().what();
  });
}

/// One rank submits a name twice. The second time it is in flight still, or comes behind.
TEST(EngineFastPath, what_is_in_flight_is_not_proposed_beside) {
  struct Round {
    std::latch submitted{1};
    std::latch answered{1};
    bool duplicate = false;
  };
  std::deque<Round> rounds(20);
  Cluster cluster({{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    const auto start = [&](std::vector<float>& values) {
      return engine.submit(blocking(allreduce_of(values, "x")));
    };
    const auto expect = [&](const Result<Handle>& handle, const std::vector<float>& values,
                            float sum) {
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      if (*handle != 0) {
        const auto work = finish(engine, *handle);
        ASSERT_TRUE(work && !work->error);
      }
      ASSERT_EQ(values, std::vector<float>(4, sum));
    };
    for (int again = 0; again < 2; ++again) expect_sum<float>(engine, rank, 2, "x", 4, 0);
    for (Round& round : rounds) {
      std::vector<float> first(4, rank == 0 ? 10.0F : 1.0F);
      std::vector<float> second(4, rank == 0 ? 20.0F : 2.0F);
      if (rank == 0) {
        const auto waits = engine.submit(allreduce_of(first, "x"));
        round.submitted.count_down();
        const auto behind = start(second);
        round.duplicate = !behind;
        round.answered.count_down();
        expect(waits, first, 11.0F);
        if (behind) {
          expect(behind, second, 22.0F);
        } else {
          EXPECT_EQ(behind.error().code, Code::Duplicate);
        }
      } else {
        round.submitted.wait();
        expect(start(first), first, 11.0F);
        round.answered.wait();
        if (!round.duplicate) expect(start(second), second, 22.0F);
      }
    }
  });
}

TEST(EngineFastPath, an_operation_without_tensors_is_refused_on_every_rank) {
  Cluster cluster({{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 2; ++round) expect_sum<float>(engine, rank, 2, "x", 4, round);
    Submission submission;
    submission.name = "x";
    const auto refused = engine.submit(blocking(std::move(submission)));
    ASSERT_FALSE(static_cast<bool>(refused));
    EXPECT_EQ(refused.error().code, Code::InvalidArgument);
    expect_sum<float>(engine, rank, 2, "x", 4, 2);
  });
}

class ProposalPair : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ProposalPair, ::testing::Values(Groups{{0, 1}}, Groups{{0}, {1}}),
                         world_name);

TEST_P(ProposalPair, who_waits_for_different_things_is_a_deadlock_all_the_same) {
  EngineOptions options;
  options.negotiator.deadlock = milliseconds(300);
  Cluster cluster(GetParam(), options);
  cluster.each([&](Rank rank, Engine& engine) {
    expect_sum<float>(engine, rank, 2, "x", 4, 0);
    expect_sum<float>(engine, rank, 2, "y", 4, 0);
    std::vector<float> values(4);
    const auto error = run(engine, allreduce_of(values, rank == 0 ? "x" : "y"));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, Code::Timeout) << error->what();
    EXPECT_NE(error->what().find("Deadlock"), std::string::npos) << error->what();
  });
}

TEST_P(ProposalPair, a_late_rank_is_complained_about_with_its_name) {
  EngineOptions options;
  options.negotiator.stall_warning = milliseconds(200);
  options.negotiator.stall_shutdown = milliseconds(400);
  Cluster cluster(GetParam(), options);
  std::latch over(1);
  cluster.each([&](Rank rank, Engine& engine) {
    expect_sum<float>(engine, rank, 2, "x", 4, 0);
    if (rank == 0) {
      over.wait();
      return;
    }
    std::vector<float> values(4);
    const auto error = run(engine, allreduce_of(values, "x"));
    over.count_down();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, Code::Timeout) << error->what();
    EXPECT_EQ(error->missing, std::vector<Rank>{0});
  });
}

TEST_P(ProposalPair, nothing_is_offered_while_a_timeline_is_recorded) {
  Cluster cluster(GetParam());
  const std::string path = ::testing::TempDir() + "proposals-timeline.json";
  cluster.each([&](Rank rank, Engine& engine) {
    for (int i = 0; i < 10; ++i) expect_sum<float>(engine, rank, 2, "x", 4, 0);
    engine.start_timeline(path, false);
    ASSERT_FALSE(run(engine, barrier()));
    const auto before = fast_operations(engine);
    for (int i = 0; i < 10; ++i) expect_sum<float>(engine, rank, 2, "x", 4, 0);
    EXPECT_EQ(fast_operations(engine), before);
    ASSERT_FALSE(run(engine, barrier()));
    engine.stop_timeline();
    for (int i = 0; i < 100; ++i) expect_sum<float>(engine, rank, 2, "x", 4, 0);
    EXPECT_GT(fast_operations(engine), before);
  });
}

TEST(AskFrame, carries_the_round_and_the_set) {
  const auto frame = encode_ask({.generation = 0x12345678, .round = 0x9ABCDEF0});
  const auto ask = decode_ask(frame);
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->generation, 0x12345678U);
  EXPECT_EQ(ask->round, 0x9ABCDEF0U);
  EXPECT_FALSE(decode_ask(std::span(frame).first(frame.size() - 1)));
}

}  // namespace
}  // namespace farandole::testing

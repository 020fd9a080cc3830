/// Operations that the members of a process set agree on by themselves: in sets that overlap, come
/// and go, beside the world and beside sets that do something else.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <numeric>
#include <random>
#include <thread>

#include "cluster.h"
#include "set_calls.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;

const std::vector<Groups> kWorlds{
    {{0, 1, 2, 3}}, {{0}, {1}, {2}, {3}}, {{0, 1}, {2, 3}}, {{0, 3}, {1, 2}}, {{0, 1, 2}, {3}}};

class FastSets : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FastSets, ::testing::ValuesIn(kWorlds), world_name);

TEST_P(FastSets, sets_that_overlap_and_the_world) {
  const std::vector<Ranks> sets{{0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {0, 3}, {2}};
  Cluster cluster(GetParam(), with_sets({sets.begin() + 1, sets.end()}));
  until_fast(cluster, 301, [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 200; ++round) {
      for (std::size_t s = 0; s < sets.size(); ++s) {
        if (!in(sets[s], rank)) continue;
        const auto set = static_cast<std::int32_t>(s);
        expect_sum(engine, set, sets[s], "same", 17, round);
        expect_sum(engine, set, sets[s], "", 3, round);
        if (round % 5 != 0) continue;
        // With data that come behind what is agreed.
        expect_sum(engine, set, sets[s], "large", 30'000 + 1000 * (s + 1), round);
        Submission barrier{.kind = Kind::Barrier};
        barrier.process_set = set;
        ASSERT_FALSE(stay(engine, std::move(barrier)));
      }
    }
  });
}

/// Two of four ranks agree by themselves in every step, whatever the other two do.
TEST_P(FastSets, what_others_do_does_not_send_a_set_the_regular_way) {
  const std::vector<Ranks> sets{{0, 1}, {2, 3}};
  Cluster cluster(GetParam(), with_sets(sets));
  std::atomic<int> ended{0};
  std::array<int, 4> turns{};  // by rank, how often it has been here
  until_fast(cluster, 400, [&](Rank rank, Engine& engine) {
    const int turn = ++turns[static_cast<std::size_t>(rank)];
    if (rank < 2) {
      for (int round = 0; round < 500; ++round) expect_sum(engine, 1, sets[0], "x", 5, round);
      ++ended;
      return;
    }
    // Both do so equally often: the last word is the first one's.
    for (int round = 0;; ++round) {
      expect_sum(engine, 2, sets[1], "y", 5, round, false);
      std::vector<float> more(1, rank == 2 && ended.load() < 2 * turn ? 1.0F : 0.0F);
      Submission submission = allreduce_of(more, "more");
      submission.process_set = 2;
      submission.mode = Mode::Awaited;
      const auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle));
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
      if (more[0] == 0.0F) return;
    }
  });
}

TEST_P(FastSets, every_collective_of_a_set) {
  const Ranks members{0, 2, 3};
  Cluster cluster(GetParam(), with_sets({members}));
  until_fast(cluster, 200, [&](Rank rank, Engine& engine) {
    if (!in(members, rank)) return;
    const auto self = std::ranges::find(members, rank) - members.begin();
    for (int round = 0; round < 100; ++round) {
      for (const std::size_t count : {std::size_t{6}, std::size_t{3000}}) {
        const std::string name = "x" + std::to_string(count);
        const auto mine = static_cast<float>(rank + round);
        std::optional<Error> error;
        std::vector<float> values(count, mine);
        std::vector<float> result(count);
        const auto with = [&](Kind kind) {
          Submission submission =
              allreduce_of(values, name + std::to_string(static_cast<int>(kind)));
          submission.kind = kind;
          submission.process_set = 1;
          submission.tensors[0].out = reinterpret_cast<std::byte*>(result.data());
          return submission;
        };
        Submission broadcast = with(Kind::Broadcast);
        broadcast.root = 2;
        stay(engine, std::move(broadcast), error);
        ASSERT_FALSE(error) << error->what();
        for (const float value : result) ASSERT_EQ(value, static_cast<float>(2 + round));

        Submission gather = with(Kind::Allgather);
        const auto rows = static_cast<std::int64_t>(count) - self;  // others have other ones
        gather.tensors[0].shape = {rows};
        gather.tensors[0].out = nullptr;
        auto work = stay(engine, std::move(gather), error);
        ASSERT_FALSE(error) << error->what();
        if (!work) {  // what is handed over at once has a handle as well
          FAIL() << "no result";
        }
        ASSERT_EQ(work->outputs.front().shape, Shape{static_cast<std::int64_t>(3 * count) - 3});
        const auto* all = reinterpret_cast<const float*>(work->outputs.front().buffer.data());
        ASSERT_EQ(all[0], static_cast<float>(round));
        ASSERT_EQ(all[count], static_cast<float>(2 + round));
        ASSERT_EQ(all[3 * count - 4], static_cast<float>(3 + round));

        Submission exchange = with(Kind::Alltoall);
        exchange.tensors[0].out = nullptr;
        std::vector<std::int32_t> received(3);
        const auto share = static_cast<std::int64_t>(count / 3);
        exchange.tensors[0].splits = {share, share, share};
        exchange.tensors[0].received = received.data();
        work = stay(engine, std::move(exchange), error);
        ASSERT_FALSE(error) << error->what();
        ASSERT_TRUE(work);
        all = reinterpret_cast<const float*>(work->outputs.front().buffer.data());
        for (std::size_t q = 0; q < 3; ++q) {
          ASSERT_EQ(all[q * count / 3], static_cast<float>(members[q] + round));
        }

        Submission scatter = with(Kind::Reducescatter);
        scatter.tensors[0].out = nullptr;
        work = stay(engine, std::move(scatter), error);
        ASSERT_FALSE(error) << error->what();
        ASSERT_TRUE(work);
        all = reinterpret_cast<const float*>(work->outputs.front().buffer.data());
        ASSERT_EQ(all[0], sum_of(members) + 3.0F * static_cast<float>(round));
      }
    }
  });
}

/// The world has agreed on all of it, with and without a name.
TEST_P(FastSets, what_makes_sense_in_the_world_only_is_refused_in_a_set) {
  const Ranks members{1, 2};
  Cluster cluster(GetParam(), with_sets({members}));
  cluster.each([&](Rank rank, Engine& engine) {
    const auto call = [&](Kind kind, std::int32_t set, Rank root, const std::string& name) {
      std::vector<float> values(12, static_cast<float>(rank));
      Submission submission = allreduce_of(values, name);
      submission.kind = kind;
      submission.process_set = set;
      submission.root = kind == Kind::Alltoall ? 0 : root;
      if (kind == Kind::Alltoall) {
        submission.tensors[0].out = nullptr;
        submission.tensors[0].splits = {3, 3, 3, 3};
      }
      return stay(engine, std::move(submission));
    };
    for (const Kind kind : {Kind::Broadcast, Kind::Reduce, Kind::Alltoall}) {
      for (const std::string name : {"", "x"}) {
        for (int i = 0; i < 4; ++i) ASSERT_FALSE(call(kind, 0, 3, name));
        for (int i = 0; in(members, rank) && kind != Kind::Alltoall && i < 4; ++i) {
          ASSERT_FALSE(call(kind, 1, 2, name));
        }
        for (int i = 0; in(members, rank) && i < 3; ++i) {
          const auto error = call(kind, 1, 3, name);
          ASSERT_TRUE(error) << static_cast<int>(kind) << " by the name '" << name << "'";
          EXPECT_EQ(error->code, Code::InvalidArgument) << error->what();
        }
      }
    }
  });
}

TEST_P(FastSets, a_number_goes_to_other_members_and_the_rounds_begin_anew) {
  Cluster cluster(GetParam());
  const std::vector<Ranks> sets{{0, 1}, {0, 2}, {1, 2, 3}, {2, 3}, {0, 1, 3}, {1}};
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 40; ++round) {
      const auto& members = sets[static_cast<std::size_t>(round) % sets.size()];
      ASSERT_EQ(add(engine, members), 1);
      if (in(members, rank)) {
        for (int i = 0; i < round % 7 + 2; ++i) {
          expect_sum(engine, 1, members, "x", 5, i);
          if (i % 3 == 1) expect_sum(engine, 1, members, "large", 50'000, i);
        }
      }
      remove(engine, 1);
    }
  });
}

/// A proposal is open while another thread of its rank takes part in the removal of another set,
/// and in the world.
TEST_P(FastSets, sets_come_and_go_beside_open_proposals) {
  const Ranks members{0, 1};
  Cluster cluster(GetParam(), with_sets({members}));
  cluster.each([&](Rank rank, Engine& engine) {
    std::jthread steady;
    if (in(members, rank)) {
      steady = std::jthread([&] {
        for (int round = 0; round < 150; ++round) {
          expect_sum(engine, 1, members, "x", 5, round);
          expect_sum(engine, 1, members, "large", 20'000, round);
        }
      });
    }
    for (int round = 0; round < 30; ++round) {
      const Ranks others = round % 2 == 0 ? Ranks{1, 2} : Ranks{0, 2, 3};
      const auto set = add(engine, others);
      ASSERT_EQ(set, 2);
      if (in(others, rank)) {
        for (int i = 0; i < 4; ++i) expect_sum(engine, set, others, "y", 3, i);
      }
      remove(engine, set);
    }
  });
}

/// Every rank chooses for itself whether it stays or only waits, in two threads; sets come and go
/// in a third one.
TEST_P(FastSets, random_programs_beside_sets_that_come_and_go) {
  const std::vector<Ranks> sets{{0, 1, 2, 3}, {0, 1}, {2, 3}, {1, 2}, {0, 1, 2}, {0, 3}};
  Cluster cluster(GetParam(), with_sets({sets.begin() + 1, sets.end()}));
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 common(static_cast<unsigned>(7 + thread));
        std::mt19937 own(static_cast<unsigned>(100 * rank + thread));
        for (int step = 0; step < 200 && !::testing::Test::HasFailure(); ++step) {
          const std::size_t s = common() % sets.size();
          const std::size_t count = common() % 8 == 0 ? 40'000 : 1 + common() % 900;
          const bool named = thread == 0 || common() % 2 == 0;
          if (!in(sets[s], rank)) continue;
          if (own() % 40 == 0) std::this_thread::sleep_for(milliseconds(own() % 4));
          const std::string name = "t" + std::to_string(thread) + "." + std::to_string(count % 5);
          expect_sum(engine, static_cast<std::int32_t>(s), sets[s], named ? name : name + "n",
                     count, step, own() % 4 != 0);
        }
      });
    }
    for (int round = 0; round < 25 && !::testing::Test::HasFailure(); ++round) {
      const Ranks& others = round % 3 == 0   ? Ranks{1, 3}
                            : round % 3 == 1 ? Ranks{0, 2}
                                             : Ranks{1, 2, 3};
      const auto set = add(engine, others);
      for (int i = 0; in(others, rank) && i < 5; ++i) {
        expect_sum(engine, set, others, "y", i == 3 ? 40'000 : 3, i, i != 2);
      }
      remove(engine, set);
    }
  });
}

/// Rank 0 stays with its set, rank 1 with another, whose last member comes late.
TEST_P(FastSets, who_waits_in_one_set_answers_in_another) {
  const std::vector<Ranks> sets{{0, 1}, {1, 2}};
  Cluster cluster(GetParam(), with_sets(sets));
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 6; ++round) {
      if (rank == 0) expect_sum(engine, 1, sets[0], "x", 4, round);
      if (rank == 2 && round > 2) std::this_thread::sleep_for(milliseconds(150 * (round - 2)));
      if (rank == 1 || rank == 2) expect_sum(engine, 2, sets[1], "y", 4, round);
      if (rank == 1) expect_sum(engine, 1, sets[0], "x", 4, round);
      expect_sum(engine, 0, {0, 1, 2, 3}, "z", 4, round);
    }
  });
}

TEST_P(FastSets, a_circle_of_sets_is_a_deadlock_that_is_named) {
  EngineOptions options = with_sets({{0, 1}, {1, 2}, {0, 2}});
  options.negotiator.deadlock = milliseconds(1000);
  Cluster cluster(GetParam(), options);
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      if (rank < 2) expect_sum(engine, 1, {0, 1}, "x", 4, round);
      if (rank == 1 || rank == 2) expect_sum(engine, 2, {1, 2}, "x", 4, round);
      if (rank == 0 || rank == 2) expect_sum(engine, 3, {0, 2}, "x", 4, round);
    }
    if (rank == 3) {  // a deadlock is when everybody waits
      Submission barrier{.kind = Kind::Barrier};
      EXPECT_TRUE(stay(engine, std::move(barrier)));
      return;
    }
    // Each waits first for who waits for the next one.
    std::vector<float> values(4, 1.0F);
    Submission submission = allreduce_of(values, "x");
    submission.process_set = rank + 1;
    if (rank == 2) submission.process_set = 3;
    const auto error = stay(engine, std::move(submission));
    ASSERT_TRUE(error);
    EXPECT_NE(error->what().find("x"), std::string::npos) << error->what();
  });
}

/// A lost rank is said to be waited for only by those who did.
TEST(EngineFastSets, a_lost_rank_that_the_open_proposal_does_not_need) {
  Cluster cluster(Groups{{0, 1, 2}}, with_sets({{0, 1}, {1, 2}}));
  std::latch learned(3);
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 5; ++round) {
      if (rank < 2) expect_sum(engine, 1, {0, 1}, "x", 4, round);
      if (rank > 0) expect_sum(engine, 2, {1, 2}, "y", 4, round);
    }
    learned.arrive_and_wait();
    if (rank == 1) return;
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(20));
      cluster.end(2);
      return;
    }
    std::vector<float> values(4, 1.0F);
    Submission submission = allreduce_of(values, "x");
    submission.process_set = 1;
    const auto error = stay(engine, std::move(submission));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->what().find("waited for it in"), std::string::npos) << error->what();
  });
}

/// The world has too many ranks on other hosts, the set has not.
TEST(EngineFastSets, a_set_of_one_host_in_a_world_that_has_no_fast_path) {
  Groups groups{{0, 1}};
  for (Rank rank = 2; rank < 18; ++rank) groups.push_back({rank});
  Cluster cluster(groups, with_sets({{0, 1}, {1, 2}}));
  until_fast(cluster, 100, [&](Rank rank, Engine& engine) {
    Ranks all(18);
    std::iota(all.begin(), all.end(), 0);
    expect_sum(engine, 0, all, "w", 4, 1);
    for (int round = 0; round < 150; ++round) {
      if (rank < 2) expect_sum(engine, 1, {0, 1}, "x", 4, round);
      if (rank == 1 || rank == 2) expect_sum(engine, 2, {1, 2}, "y", 4, round);
    }
    expect_sum(engine, 0, all, "w", 4, 2);
  });
  const auto paths = cluster[0].paths();
  EXPECT_TRUE(paths.contains("shm.fast"));
  EXPECT_FALSE(paths.contains("tcp.fast"));
  EXPECT_TRUE(cluster[2].paths().contains("tcp.fast"));
}

/// Bit for bit, of lengths where an order of additions shows.
TEST_P(FastSets, results_are_those_of_the_regular_way) {
  const Ranks members{0, 1, 3};
  Cluster cluster(GetParam(), with_sets({members}));
  until_fast(cluster, 50, [&](Rank rank, Engine& engine) {
    if (!in(members, rank)) return;
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 100; ++round) {
      std::vector<float> one(1 + static_cast<std::size_t>(round % 10) * 33);
      for (float& value : one) value = static_cast<float>(random()) / 3e5F - 7e3F;
      std::vector<float> other = one;
      const auto scaled = [&](std::vector<float>& values, const char* name) {
        Submission submission = allreduce_of(values, name + std::to_string(round % 10));
        submission.process_set = 1;
        submission.op = ReduceOp::Average;
        submission.prescale = 0.3;
        submission.postscale = 1.7;
        return submission;
      };
      ASSERT_FALSE(stay(engine, scaled(one, "r")));
      Submission submission = scaled(other, "s");
      submission.mode = Mode::Awaited;
      const auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle));
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
      ASSERT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0);
    }
  });
}

}  // namespace
}  // namespace farandole::testing

/// Engines as threads of one process: process sets that overlap, come and go under traffic.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{
    {{0, 1, 2, 3}}, {{0}, {1}, {2}, {3}}, {{0, 1}, {2, 3}}, {{0, 3}, {1, 2}}};

class EngineSets : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EngineSets, ::testing::ValuesIn(kWorlds), world_name);

/// The number that the operation ends with; -1 after a failure.
std::int64_t number_of(Engine& engine, Result<Handle> handle) {
  EXPECT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  if (!handle) return -1;
  const auto work = finish(engine, *handle);
  EXPECT_TRUE(work && !work->error) << (work ? work->error->what() : "");
  return work && work->value ? *work->value : -1;
}

Submission barrier_of(std::int32_t set) {
  Submission submission;
  submission.kind = Kind::Barrier;
  submission.process_set = set;
  submission.mode = Mode::Awaited;
  return submission;
}

bool in(const std::vector<Rank>& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

float sum_of(const std::vector<Rank>& ranks) {
  float sum = 0;
  for (const Rank rank : ranks) sum += static_cast<float>(rank);
  return sum;
}

/// An allreduce under way.
struct Running {
  std::vector<float> values;
  float want = 0;
  Handle handle = 0;
};

void start(Engine& engine, Running& one, Rank rank, std::int32_t set,
           const std::vector<Rank>& members, const std::string& name, std::size_t count,
           bool waited) {
  one.values.assign(count, static_cast<float>(rank));
  one.want = sum_of(members);
  Submission submission = allreduce_of(one.values, name, waited);
  submission.process_set = set;
  auto handle = engine.submit(std::move(submission));
  ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  one.handle = *handle;
}

void expect_done(Engine& engine, const Running& one) {
  const auto work = finish(engine, one.handle);
  ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
  for (const float value : one.values) ASSERT_EQ(value, one.want) << work->name;
}

TEST_P(EngineSets, a_set_reduces_over_its_members_only) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    const std::vector<std::vector<Rank>> sets{{0, 1}, {1, 2, 3}, {2}, {0, 3}};
    for (std::size_t i = 0; i < sets.size(); ++i) {
      ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = sets[i]})),
                static_cast<int>(i) + 1);
    }
    ASSERT_EQ(engine.process_sets().size(), 5U);
    ASSERT_EQ(engine.process_sets().at(2), (std::vector<Rank>{1, 2, 3}));
    for (const std::size_t count : {std::size_t{1}, std::size_t{3000}, std::size_t{400'001}}) {
      for (std::size_t i = 0; i < sets.size(); ++i) {
        if (!in(sets[i], rank)) continue;
        Running one;
        start(engine, one, rank, static_cast<std::int32_t>(i) + 1, sets[i], "x", count, true);
        expect_done(engine, one);
      }
    }
  });
}

/// Adds a set, and keeps what a rank needs to use it.
struct Sets {
  std::map<std::int32_t, std::vector<Rank>> members;

  std::int32_t add(Engine& engine, const std::vector<Rank>& ranks) {
    const auto id = static_cast<std::int32_t>(
        number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = ranks})));
    members[id] = ranks;
    return id;
  }
  void remove(Engine& engine, std::int32_t id) {
    number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = id}));
    members.erase(id);
  }
  /// In every set of this rank: alone as a thread that waits, and all at once.
  void use(Engine& engine, Rank rank, int rounds) const {
    for (int round = 0; round < rounds; ++round) {
      std::vector<Running> all;
      all.reserve(members.size());
      for (const auto& [id, ranks] : members) {
        if (!in(ranks, rank)) continue;
        Running one;
        const std::size_t count = round % 4 == 3 ? 30'000 : 100;
        one.values.assign(count, static_cast<float>(rank));
        Submission stays = blocking(allreduce_of(one.values, "stays"));
        stays.process_set = id;
        auto handle = engine.submit(std::move(stays));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        one.want = sum_of(ranks);
        one.handle = *handle;
        if (*handle != 0) expect_done(engine, one);
        ASSERT_EQ(one.values.front(), one.want);
        ASSERT_EQ(one.values.back(), one.want);
        start(engine, all.emplace_back(), rank, id, ranks, "x", count, true);
      }
      for (const Running& one : all) expect_done(engine, one);
    }
  }
};

TEST(EngineChannels, sets_of_different_hosts_use_one_channel_at_the_same_time) {
  Cluster cluster({{0, 1, 2, 3}, {4, 5, 6, 7}});
  cluster.each([](Rank rank, Engine& engine) {
    Sets sets;
    const auto left = sets.add(engine, {0, 1, 2, 3});
    sets.add(engine, {4, 5, 6, 7});
    sets.add(engine, {0, 1});
    sets.add(engine, {4, 5});
    sets.add(engine, {1, 2, 5, 6});
    sets.add(engine, {2, 6});
    sets.use(engine, rank, 40);
    // Its channel is that of another one now, whose members were not all in it.
    sets.remove(engine, left);
    sets.add(engine, {1, 2, 3});
    sets.add(engine, {3, 7});
    sets.use(engine, rank, 40);
  });
}

TEST(EngineChannels, there_may_be_more_sets_than_channels) {
  constexpr Rank kRanks = 18;
  Groups together{{}};
  for (Rank rank = 0; rank < kRanks; ++rank) together[0].push_back(rank);
  EngineOptions options;
  std::vector<std::vector<Rank>> pairs;
  for (Rank a = 0; a < kRanks; ++a) {
    for (Rank b = a + 1; b < kRanks; ++b) pairs.push_back({a, b});
  }
  ASSERT_GT(pairs.size(), static_cast<std::size_t>(kShmChannels));
  options.negotiator.process_sets = pairs;
  // The engines of this process start one after another, which may take long with so many sets.
  options.heartbeat.limit = Duration::zero();
  Cluster cluster(together, options);
  cluster.each([&](Rank rank, Engine& engine) {
    Sets sets;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      sets.members[static_cast<std::int32_t>(i) + 1] = pairs[i];
    }
    sets.use(engine, rank, 4);
  });
}

TEST_P(EngineSets, sets_of_the_start_work_at_once) {
  EngineOptions options;
  options.negotiator.process_sets = {{0, 1, 2}, {1, 3}};
  Cluster cluster(GetParam(), options);
  cluster.each([](Rank rank, Engine& engine) {
    const std::vector<std::vector<Rank>> sets{{0, 1, 2}, {1, 3}};
    for (std::int32_t id : {1, 2}) {
      const auto& members = sets[static_cast<std::size_t>(id) - 1];
      if (!in(members, rank)) continue;
      for (int round = 0; round < 20; ++round) {
        Running one;
        start(engine, one, rank, id, members, "x", round % 5 == 0 ? 200'000 : 10, true);
        expect_done(engine, one);
      }
    }
  });
}

TEST_P(EngineSets, gathers_broadcasts_and_barriers_of_a_set) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    const std::vector<Rank> members{1, 2, 3};
    const auto id = static_cast<std::int32_t>(
        number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = members})));
    if (!in(members, rank)) return;
    for (int round = 0; round < 5; ++round) {
      std::vector<float> values(1000, static_cast<float>(rank));
      Submission broadcast = allreduce_of(values, "b");
      broadcast.kind = Kind::Broadcast;
      broadcast.root = 2;
      broadcast.process_set = id;
      auto handle = engine.submit(std::move(broadcast));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
      for (const float value : values) ASSERT_EQ(value, 2.0F);
      std::vector<std::int64_t> rows(static_cast<std::size_t>(rank), rank);
      Submission gather;
      gather.kind = Kind::Allgather;
      gather.process_set = id;
      gather.mode = Mode::Awaited;
      gather.tensors.push_back(tensor_of(rows));
      gather.tensors.front().out = nullptr;
      handle = engine.submit(std::move(gather));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
      ASSERT_EQ(work->outputs.front().shape, Shape{6});
      handle = engine.submit(barrier_of(id));
      ASSERT_TRUE(static_cast<bool>(handle));
      work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
    }
    std::vector<float> values(3, 1.0F);
    Submission foreign = allreduce_of(values, "b");
    foreign.kind = Kind::Broadcast;
    foreign.root = 0;
    foreign.process_set = id;
    const auto refused = engine.submit(std::move(foreign));
    ASSERT_FALSE(static_cast<bool>(refused));
    EXPECT_NE(refused.error().what().find("invalid root rank"), std::string::npos);
  });
}

TEST_P(EngineSets, calls_without_a_name_are_counted_set_by_set) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    const auto call = [&](std::int32_t set, const std::vector<Rank>& members) {
      Running one;
      start(engine, one, rank, set, members, "", 10, true);
      expect_done(engine, one);
    };
    const std::vector<Rank> all{0, 1, 2, 3};
    const std::vector<Rank> some{1, 2};
    for (int round = 0; round < 2; ++round) {  // the second set gets the number of the first
      const auto id = static_cast<std::int32_t>(
          number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = some})));
      for (int i = 0; in(some, rank) && i < 3 + round; ++i) call(id, some);
      call(0, all);
      for (int i = 0; in(some, rank) && i < 2; ++i) call(id, some);
      call(0, all);
      number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = id}));
      // Others have not used the number: the members' calls with it must not count for them.
      const std::vector<Rank> others{0, 1};
      const auto other = static_cast<std::int32_t>(
          number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = others})));
      if (in(others, rank)) call(other, others);
      number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = other}));
    }
  });
}

TEST_P(EngineSets, errors_on_the_caller_alone) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = {1, 2}})), 1);
    std::vector<float> values(3, 1.0F);
    Submission submission = allreduce_of(values, "x");
    submission.process_set = 5;
    auto refused = engine.submit(std::move(submission));
    ASSERT_FALSE(static_cast<bool>(refused));
    EXPECT_EQ(refused.error().code, Code::InvalidArgument);
    EXPECT_NE(refused.error().what().find("does not exist, or has not been registered"),
              std::string::npos);
    if (rank == 0) {
      submission = allreduce_of(values, "x");
      submission.process_set = 1;
      refused = engine.submit(std::move(submission));
      ASSERT_FALSE(static_cast<bool>(refused));
      EXPECT_NE(refused.error().what().find("is not a member of the provided process set"),
                std::string::npos);
    }
    EXPECT_EQ(engine.submit({.kind = Kind::AddProcessSet, .ranks = {2, 1}}).error().code,
              Code::InvalidArgument);
    EXPECT_EQ(engine.submit({.kind = Kind::AddProcessSet, .ranks = {0, 4}}).error().code,
              Code::InvalidArgument);
    EXPECT_EQ(engine.submit({.kind = Kind::RemoveProcessSet, .root = 7}).error().code,
              Code::InvalidArgument);
    EXPECT_EQ(engine.submit({.kind = Kind::RemoveProcessSet, .root = 0}).error().code,
              Code::InvalidArgument);
    // Known by all ranks only at its place in the order: an error of the operation.
    auto duplicate = engine.submit({.kind = Kind::AddProcessSet, .ranks = {1, 2}});
    ASSERT_TRUE(static_cast<bool>(duplicate));
    const auto work = finish(engine, *duplicate);
    ASSERT_TRUE(work && work->error);
    EXPECT_EQ(work->error->code, Code::InvalidArgument);
    EXPECT_NE(work->error->what().find("duplicate process set"), std::string::npos);
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = 1})), 1);
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = {1, 2}})), 1);
  });
}

TEST_P(EngineSets, a_number_and_its_memory_are_used_again_by_others) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    const std::vector<std::vector<Rank>> sets{{0, 1}, {0, 2}, {1, 2, 3}, {2, 3}, {0, 1, 3}};
    for (int round = 0; round < 40; ++round) {
      const auto& members = sets[static_cast<std::size_t>(round) % sets.size()];
      ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = members})),
                1);
      if (in(members, rank)) {
        for (const std::size_t count : {std::size_t{5}, std::size_t{100'000}, std::size_t{7}}) {
          Running one;
          start(engine, one, rank, 1, members, "x", count, true);
          expect_done(engine, one);
        }
      }
      ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = 1})), 1);
    }
  });
}

TEST_P(EngineSets, what_is_pending_on_a_removed_set_fails) {
  Cluster cluster(GetParam());
  cluster.each([](Rank rank, Engine& engine) {
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = {0, 1, 2}})),
              1);
    Running left;
    if (rank == 1) start(engine, left, rank, 1, {}, "left", 10, false);
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = 1})), 1);
    if (rank != 1) return;
    const auto work = finish(engine, left.handle);
    ASSERT_TRUE(work && work->error);
    EXPECT_NE(work->error->what().find("Process set has been removed"), std::string::npos);
    EXPECT_EQ(work->error->code, Code::Internal);
  });
}

TEST_P(EngineSets, two_threads_may_be_in_a_barrier) {
  Cluster cluster(GetParam());
  cluster.each([](Rank, Engine& engine) {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round) {
          auto handle = engine.submit(barrier_of(0));
          ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
          const auto work = finish(engine, *handle);
          ASSERT_TRUE(work && !work->error);
        }
      });
    }
  });
}

/// Random overlapping sets on 8 ranks: everybody submits in an order of its own, some operations
/// stay under way while sets come and go.
void traffic(const Groups& groups, unsigned seed, int phases) {
  Cluster cluster(groups);
  const int size = cluster.size();
  cluster.each([&](Rank rank, Engine& engine) {
    std::mt19937 plan(seed);  // the same on every rank
    std::mt19937 own(seed + static_cast<unsigned>(rank) + 1);
    std::map<std::int32_t, std::vector<Rank>> sets;
    for (Rank r = 0; r < size; ++r) sets[0].push_back(r);
    std::vector<Running> kept;
    kept.reserve(1000);
    std::vector<Handle> doomed;
    for (int phase = 0; phase < phases; ++phase) {
      struct Planned {
        std::int32_t set;
        std::string name;
        std::size_t count;
      };
      std::vector<Planned> mine;
      for (const auto& [id, members] : sets) {
        const std::size_t operations = plan() % 4;
        for (std::size_t i = 0; i < operations; ++i) {
          const std::size_t count = plan() % 5 == 0 ? 50'000 + plan() % 50'000 : 1 + plan() % 3000;
          if (in(members, rank)) mine.push_back({id, "op" + std::to_string(i), count});
        }
      }
      std::shuffle(mine.begin(), mine.end(), own);
      std::vector<Running> running(mine.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto& members = sets.at(mine[i].set);
        start(engine, running[i], rank, mine[i].set, members, mine[i].name, mine[i].count, false);
        if (::testing::Test::HasFatalFailure()) return;
      }
      const bool waits_first = own() % 2 == 0;
      if (waits_first) {
        for (const Running& one : running) expect_done(engine, one);
      }
      if (sets.size() > 1 && plan() % 3 == 0) {
        auto at = std::next(sets.begin());
        std::advance(at, static_cast<std::ptrdiff_t>(plan() % (sets.size() - 1)));
        const Rank silent = at->second[plan() % at->second.size()];
        if (at->second.size() > 1 && in(at->second, rank) && rank != silent) {
          Running& hole = kept.emplace_back();
          start(engine, hole, rank, at->first, {}, "hole", 20, false);
          doomed.push_back(hole.handle);
        }
        ASSERT_EQ(
            number_of(engine, engine.submit({.kind = Kind::RemoveProcessSet, .root = at->first})),
            at->first);
        sets.erase(at);
      } else {
        std::vector<Rank> members;
        for (Rank r = 0; r < size; ++r) {
          if (plan() % 2 == 0) members.push_back(r);
        }
        const bool known =
            std::ranges::any_of(sets, [&](const auto& set) { return set.second == members; });
        if (!members.empty() && !known) {
          const auto id =
              number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = members}));
          ASSERT_GT(id, 0);
          sets[static_cast<std::int32_t>(id)] = members;
        }
      }
      if (!waits_first) {
        for (const Running& one : running) expect_done(engine, one);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(engine.process_sets(), sets);
    for (const Handle handle : doomed) {
      const auto work = finish(engine, handle);
      ASSERT_TRUE(work && work->error);
      EXPECT_NE(work->error->what().find("Process set has been removed"), std::string::npos);
    }
  });
}

TEST(EngineSetTraffic, on_one_host) {
  for (unsigned seed = 1; seed <= 3; ++seed) traffic({{0, 1, 2, 3, 4, 5, 6, 7}}, seed, 25);
}

TEST(EngineSetTraffic, on_three_hosts) {
  for (unsigned seed = 1; seed <= 3; ++seed) traffic({{0, 1, 6}, {2, 3, 4}, {5, 7}}, seed, 25);
}

TEST(EngineSetTraffic, with_nothing_shared) {
  for (unsigned seed = 1; seed <= 2; ++seed) {
    traffic({{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}, seed, 20);
  }
}

TEST(EngineSetTraffic, another_pair_goes_on_while_a_set_waits_for_its_last_member) {
  Cluster cluster(Groups{{0, 1, 2, 3}});
  std::atomic<bool> pair_is_done{false};
  cluster.each([&](Rank rank, Engine& engine) {
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = {0, 1}})), 1);
    ASSERT_EQ(number_of(engine, engine.submit({.kind = Kind::AddProcessSet, .ranks = {2, 3}})), 2);
    if (rank == 0) pair_is_done.wait(false);  // late for its set
    const std::int32_t set = rank < 2 ? 1 : 2;
    for (int round = 0; round < 10; ++round) {
      auto handle = engine.submit(barrier_of(set));
      ASSERT_TRUE(static_cast<bool>(handle));
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
    }
    if (rank == 3) {
      pair_is_done = true;
      pair_is_done.notify_all();
    }
  });
}

TEST(EngineSetTraffic, sets_of_the_start_that_make_no_sense_are_refused) {
  for (const std::vector<std::vector<Rank>>& sets :
       {std::vector<std::vector<Rank>>{{0}, {0}}, {{0, 1}}, {{1, 0}}, {{2}}, {{}}}) {
    EngineOptions options;
    options.rank = 0;
    options.negotiator.process_sets = sets;
    Engine engine(options);
    const auto started = engine.start();
    ASSERT_FALSE(static_cast<bool>(started));
    EXPECT_EQ(started.error().code, Code::InvalidArgument);
  }
}

}  // namespace
}  // namespace farandole::testing

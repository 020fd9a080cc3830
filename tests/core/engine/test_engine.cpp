/// Engines as threads of one process: operations, order, errors, failures, the end.

#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <numeric>
#include <random>
#include <semaphore>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{
    {{0}},      {{0, 1}},        {{0, 1, 2}},   {{0, 1, 2, 3}},
    {{0}, {1}}, {{0}, {1}, {2}}, {{0, 1}, {2}}, {{0, 2}, {1, 3}},
};

class EngineWorld : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(Worlds, EngineWorld, ::testing::ValuesIn(kWorlds), world_name);

float sum_of_ranks(int size) { return static_cast<float>(size * (size - 1) / 2); }

TEST_P(EngineWorld, blocking_allreduce_sums_over_ranks) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> values(1 + static_cast<std::size_t>(round) * 7,
                                static_cast<float>(rank + round));
      auto handle = engine.submit(allreduce_of(values, "x"));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      const float want = sum_of_ranks(cluster.size()) + static_cast<float>(round * cluster.size());
      for (const float value : values) ASSERT_EQ(value, want);
    }
  });
}

TEST_P(EngineWorld, large_allreduce_sums_over_ranks) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> values((std::size_t{3} << 20) / 4 + 5);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 97) + static_cast<float>(rank);
    auto handle = engine.submit(allreduce_of(values, "large"));
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(i % 97) * static_cast<float>(cluster.size()) +
                               sum_of_ranks(cluster.size()))
          << i;
    }
  });
}

TEST_P(EngineWorld, many_asynchronous_operations_in_any_order) {
  Cluster cluster(GetParam());
  constexpr int kTensors = 161;
  cluster.each([&](Rank rank, Engine& engine) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> tensors;
      std::vector<int> order(kTensors);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (int i = 0; i < kTensors; ++i) {
        tensors.emplace_back(static_cast<std::size_t>(1 + i * 13 % 4001),
                             static_cast<float>(i + rank));
      }
      std::vector<Handle> handles;
      for (const int i : order) {
        auto handle = engine.submit(
            allreduce_of(tensors[static_cast<std::size_t>(i)], "t" + std::to_string(i), false));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        handles.push_back(*handle);
      }
      engine.mark_all_waited();
      for (const Handle handle : handles) {
        const auto work = finish(engine, handle);
        ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      }
      for (int i = 0; i < kTensors; ++i) {
        for (const float value : tensors[static_cast<std::size_t>(i)]) {
          ASSERT_EQ(value, static_cast<float>(i * cluster.size()) + sum_of_ranks(cluster.size()));
        }
      }
    }
  });
}

TEST_P(EngineWorld, operations_that_nobody_waits_for_complete_all_the_same) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1)
    return;  // a world of one: at the second poll
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> values(3, static_cast<float>(rank));
    std::atomic<bool> done{false};
    Submission submission = allreduce_of(values, "quiet", false);
    submission.on_done = [&done](const Work&) {
      done = true;
      done.notify_all();
    };
    auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(static_cast<bool>(handle));
    done.wait(false);
    EXPECT_EQ(values[0], sum_of_ranks(cluster.size()));
    EXPECT_TRUE(engine.take(*handle));
  });
}

TEST_P(EngineWorld, allgather_rows_differ_between_ranks) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int64_t> rows(static_cast<std::size_t>((rank + round) % 3 * 1000) * 2, rank);
      Submission submission;
      submission.kind = Kind::Allgather;
      submission.mode = Mode::Awaited;
      submission.tensors.push_back(tensor_of(rows));
      submission.tensors.front().shape = {static_cast<std::int64_t>(rows.size() / 2), 2};
      submission.tensors.front().out = nullptr;
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      std::vector<std::int64_t> want;
      for (Rank r = 0; r < cluster.size(); ++r)
        want.insert(want.end(), static_cast<std::size_t>((r + round) % 3 * 1000) * 2, r);
      const Output& output = work->outputs.front();
      ASSERT_EQ(output.shape, (Shape{static_cast<std::int64_t>(want.size() / 2), 2}));
      const auto* got = reinterpret_cast<const std::int64_t*>(output.buffer.data());
      ASSERT_TRUE(std::equal(want.begin(), want.end(), got));
    }
  });
}

TEST_P(EngineWorld, broadcast_and_barrier) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (Rank root = 0; root < cluster.size(); ++root) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{300'001}}) {
        std::vector<float> values(count, static_cast<float>(rank + 1));
        Submission submission = allreduce_of(values, "b");
        submission.kind = Kind::Broadcast;
        submission.root = root;
        auto handle = engine.submit(std::move(submission));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        const auto work = finish(engine, *handle);
        ASSERT_TRUE(work && !work->error);
        for (const float value : values) ASSERT_EQ(value, static_cast<float>(root + 1));
      }
      Submission barrier;
      barrier.kind = Kind::Barrier;
      barrier.mode = Mode::Awaited;
      auto handle = engine.submit(std::move(barrier));
      ASSERT_TRUE(static_cast<bool>(handle));
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
    }
  });
}

TEST_P(EngineWorld, groups_complete_under_one_handle) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> a(10, static_cast<float>(rank));
    std::vector<std::int64_t> b(70'001, rank);
    std::vector<float> c(0);
    Submission submission;
    submission.kind = Kind::Allreduce;
    submission.grouped = true;
    submission.name = "g";
    submission.tensors = {tensor_of(a), tensor_of(b), tensor_of(c)};
    auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error);
    EXPECT_EQ(a.back(), sum_of_ranks(cluster.size()));
    EXPECT_EQ(b.back(), cluster.size() * (cluster.size() - 1) / 2);
  });
}

TEST_P(EngineWorld, mismatched_shapes_fail_on_every_rank_and_the_world_goes_on) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;  // nobody to disagree with
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> values(static_cast<std::size_t>(17 + rank), 1.0F);
    auto handle = engine.submit(allreduce_of(values, "m"));
    ASSERT_TRUE(static_cast<bool>(handle));
    auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error);
    EXPECT_EQ(work->error->code, Code::Mismatch);
    EXPECT_NE(work->error->what().find("Mismatched ALLREDUCE tensor shapes"), std::string::npos)
        << work->error->what();
    EXPECT_EQ(work->error->tensor, "allreduce.m");
    EXPECT_EQ(work->error->missing.size(), static_cast<std::size_t>(cluster.size()));
    EXPECT_EQ(work->error->missing.back(), cluster.size() - 1);
    std::vector<float> same(5, 1.0F);
    auto next = engine.submit(allreduce_of(same, "m"));
    ASSERT_TRUE(static_cast<bool>(next));
    work = finish(engine, *next);
    ASSERT_TRUE(work && !work->error);
    EXPECT_EQ(same[0], static_cast<float>(cluster.size()));
  });
}

TEST_P(EngineWorld, a_name_in_flight_is_refused_at_once) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;
  Cluster cluster(GetParam());
  std::vector<float> first(3, 1.0F);
  auto handle = cluster[0].submit(allreduce_of(first, "x", false));
  ASSERT_TRUE(static_cast<bool>(handle));
  std::vector<float> second(3, 2.0F);
  const auto refused = cluster[0].submit(allreduce_of(second, "x", false));
  ASSERT_FALSE(static_cast<bool>(refused));
  EXPECT_EQ(refused.error().code, Code::Duplicate);
  EXPECT_NE(refused.error().what().find("same name as another tensor"), std::string::npos);
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == 0) return;
    std::vector<float> mine(3, 1.0F);
    auto own = engine.submit(allreduce_of(mine, "x"));
    ASSERT_TRUE(static_cast<bool>(own));
    const auto work = finish(engine, *own);
    ASSERT_TRUE(work && !work->error);
  });
  const auto work = finish(cluster[0], *handle);
  ASSERT_TRUE(work && !work->error);
  EXPECT_EQ(first[0], static_cast<float>(cluster.size()));
}

TEST_P(EngineWorld, after_a_shutdown_anywhere_everything_fails_with_its_name) {
  if (GetParam().size() == 1 && GetParam().front().size() == 1) return;
  Cluster cluster(GetParam());
  const Rank last = cluster.size() - 1;
  cluster.each([&](Rank rank, Engine& engine) {
    if (rank == last) {
      engine.shutdown();
      return;
    }
    std::vector<float> values(3, 1.0F);
    auto handle = engine.submit(allreduce_of(values, "never"));
    std::string text;
    if (handle) {
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && work->error);
      EXPECT_EQ(work->error->code, Code::Shutdown);
      text = work->error->what();
    } else {
      EXPECT_EQ(handle.error().code, Code::Shutdown);
      text = handle.error().what();
    }
    EXPECT_NE(text.find("Horovod has been shut down"), std::string::npos) << text;
  });
}

TEST(Engine, a_lost_rank_is_named_on_every_other_rank) {
  Cluster cluster(Groups{{0, 1, 2}});
  std::vector<Handle> handles;
  std::vector<std::vector<float>> values(3, std::vector<float>(3, 1.0F));
  for (Rank rank : {0, 2}) {
    auto handle = cluster[rank].submit(allreduce_of(values[static_cast<std::size_t>(rank)], "x"));
    ASSERT_TRUE(static_cast<bool>(handle));
    handles.push_back(*handle);
  }
  cluster.cut(1);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto work = finish(cluster[i == 0 ? 0 : 2], handles[i]);
    ASSERT_TRUE(work && work->error);
    EXPECT_EQ(work->error->code, Code::PeerLost);
    EXPECT_EQ(work->error->peer, 1);
    const std::string told = work->error->what();
    const std::string whom = "rank 1 on host host0 is gone: its connection has ended";
    EXPECT_EQ(told.find(whom), told.rfind(whom)) << told;  // once
    EXPECT_NE(told.find(whom), std::string::npos) << told;
  }
}

TEST(Engine, a_rank_that_closes_its_connections_is_not_said_to_have_ended) {
  Cluster cluster(Groups{{0, 1, 2}}, {}, -1, {}, {}, {}, 1, true);
  std::vector<float> values(3, 1.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "x"));
  ASSERT_TRUE(static_cast<bool>(handle));
  cluster.cut(1);
  const auto work = finish(cluster[0], *handle);
  ASSERT_TRUE(work && work->error);
  EXPECT_EQ(work->error->what(),
            "rank 1 on host host0 is gone: it has closed its connections, though its process "
            "lives, while others waited for it in allreduce.x. Look at its own output for the "
            "reason");
}

TEST(Engine, two_threads_of_a_rank_submit_and_wait_at_once) {
  Cluster cluster(Groups{{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 100; ++round) {
          std::vector<float> values(50, static_cast<float>(rank));
          auto handle = engine.submit(allreduce_of(values, "thread" + std::to_string(t)));
          ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
          const auto work = finish(engine, *handle);
          ASSERT_TRUE(work && !work->error);
          ASSERT_EQ(values[0], 1.0F);
        }
      });
    }
  });
}

TEST(Engine, callbacks_may_submit_the_next_operation) {
  struct Chain {
    std::vector<float> values = std::vector<float>(4);
    std::function<void()> next;
    int left = 50;
    std::binary_semaphore over{0};
  };
  std::array<Chain, 2> chains;  // outlive the engines
  Cluster cluster(Groups{{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    Chain& chain = chains[static_cast<std::size_t>(rank)];
    chain.next = [&chain, &engine] {
      while (--chain.left > 0) {
        Submission submission = allreduce_of(chain.values, "chain");
        submission.mode = Mode::Callback;
        submission.on_done = [&chain](const Work& work) {
          EXPECT_FALSE(work.error);
          chain.next();
        };
        const auto handle = engine.submit(std::move(submission));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        if (*handle != 0) return;  // else it was over at once
      }
      chain.over.release();
    };
    chain.next();
    ASSERT_TRUE(chain.over.try_acquire_for(std::chrono::seconds(30)));
  });
}

TEST(Engine, a_world_of_one_says_no_to_the_first_poll) {
  Cluster cluster(Groups{{0}});
  std::vector<float> values(3, 2.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "x", false));
  ASSERT_TRUE(static_cast<bool>(handle));
  EXPECT_EQ(cluster[0].poll(*handle), std::optional(false));
  EXPECT_EQ(cluster[0].poll(*handle), std::optional(true));
  EXPECT_EQ(values[0], 2.0F);
}

TEST(Engine, a_watched_operation_is_done_when_the_last_rank_has_come) {
  Cluster cluster(Groups{{0, 1}});
  std::vector<float> values(3, 1.0F);
  std::vector<float> others(3, 2.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "x", false));
  ASSERT_TRUE(static_cast<bool>(handle));
  EXPECT_EQ(cluster[0].watch(*handle, Clock::now() + std::chrono::milliseconds(1)),
            std::optional(false));
  auto other = cluster[1].submit(allreduce_of(others, "x", false));
  ASSERT_TRUE(static_cast<bool>(other));
  std::jthread peer([&] { finish(cluster[1], *other); });
  EXPECT_EQ(cluster[0].watch(*handle, Clock::now() + std::chrono::seconds(60)),
            std::optional(true));
  EXPECT_EQ(values[0], 3.0F);
  EXPECT_EQ(cluster[0].watch(*handle + 1000, Clock::now()), std::nullopt);
}

TEST(Engine, a_hundred_worlds_one_after_another) {
  for (int i = 0; i < 100; ++i) {
    Cluster cluster(Groups{{0, 1}});
    cluster.each([&](Rank rank, Engine& engine) {
      std::vector<float> values(1, static_cast<float>(rank));
      auto handle = engine.submit(allreduce_of(values, "x"));
      ASSERT_TRUE(static_cast<bool>(handle));
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error);
    });
  }
}

TEST(Engine, nonsense_from_a_rank_that_left_its_reason_is_reported_as_that_reason) {
  Cluster cluster(Groups{{0, 1}});
  std::vector<float> values(3, 1.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "x", false));
  ASSERT_TRUE(static_cast<bool>(handle));
  Peers& peers = cluster[1].peers();
  peers.leave_cause({.code = Code::Backend, .message = "the reason", .peer = 1});
  const std::vector<std::byte> malformed(5, std::byte{0x7E});
  ASSERT_TRUE(static_cast<bool>(peers.channel(0)->send(malformed)));
  ASSERT_TRUE(static_cast<bool>(peers.channel(0)->flush()));
  const auto work = finish(cluster[0], *handle);
  ASSERT_TRUE(work && work->error);
  EXPECT_EQ(work->error->message, "the reason");
}

TEST(Engine, a_world_that_has_failed_uses_no_processor) {
  EngineOptions options;
  options.negotiator.stall_warning = std::chrono::milliseconds(5);  // something is always due soon
  options.log_level = LogLevel::Fatal;
  Cluster cluster(Groups{{0, 1}}, options);
  std::vector<float> values(3, 1.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "x"));
  ASSERT_TRUE(static_cast<bool>(handle));
  cluster.cut(1);
  const auto work = finish(cluster[0], *handle);
  ASSERT_TRUE(work && work->error);
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // what is measured
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 10);
}

TEST(Engine, a_shutdown_reaches_a_thread_that_sleeps_in_a_wait) {
  Cluster cluster(Groups{{0, 1}});
  std::vector<float> values(3, 1.0F);
  auto handle = cluster[0].submit(allreduce_of(values, "never"));
  ASSERT_TRUE(static_cast<bool>(handle));
  std::jthread waiter([&] {
    const auto work = finish(cluster[0], *handle);
    ASSERT_TRUE(work && work->error);
    EXPECT_EQ(work->error->code, Code::Shutdown);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // likely asleep by then
  const auto start = Clock::now();
  cluster[0].shutdown();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

TEST(Engine, a_request_without_tensors_is_refused) {
  Cluster cluster(Groups{{0}});
  Submission submission;
  const auto refused = cluster[0].submit(std::move(submission));
  ASSERT_FALSE(static_cast<bool>(refused));
  EXPECT_EQ(refused.error().code, Code::InvalidArgument);
}

}  // namespace
}  // namespace farandole::testing

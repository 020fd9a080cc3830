/// Backends written in another language, under engines and alone.

#include "backends/foreign/foreign.h"

#include <gtest/gtest.h>

#include <numeric>
#include <semaphore>

#include "bindings/capi.h"
#include "cluster.h"
#include "foreign_fake.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

EngineOptions impatient() {
  EngineOptions options;
  options.operation_timeout = milliseconds(300);
  options.log_level = LogLevel::Fatal;
  return options;
}

std::function<void(Engine&)> over(const std::shared_ptr<FakeWorld>& world) {
  return [world](Engine& engine) { engine.use(std::make_shared<FakeClass>(world)); };
}

/// Runs an allreduce to its end; the error, if there was one.
std::optional<Error> allreduce(Engine& engine, std::vector<float>& values,
                               std::int32_t process_set = 0) {
  Submission submission = allreduce_of(values, "x");
  submission.process_set = process_set;
  const auto handle = engine.submit(std::move(submission));
  if (!handle) return handle.error();
  const auto work = finish(engine, *handle);
  return work ? work->error : std::nullopt;
}

class Worlds : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(Foreign, Worlds,
                         ::testing::Values(Groups{{0, 1}}, Groups{{0}, {1}}, Groups{{0, 1, 2}},
                                           Groups{{0, 2}, {1, 3}}),
                         world_name);

TEST_P(Worlds, SendAndRecvAreEnoughForEverything) {
  auto world = std::make_shared<FakeWorld>();
  Cluster cluster(GetParam(), {}, -1, over(world));
  cluster.each([&](Rank rank, Engine& engine) {
    for (const std::size_t count : {0UL, 1UL, 7UL, 100000UL}) {
      std::vector<float> values(count, static_cast<float>(rank + 1));
      EXPECT_FALSE(allreduce(engine, values));
      const auto sum = static_cast<float>(cluster.size() * (cluster.size() + 1) / 2);
      EXPECT_EQ(values, std::vector<float>(count, sum));
    }
    std::vector<std::int64_t> rows(static_cast<std::size_t>(rank), rank);
    Submission gather = allreduce_of(rows, "rows");
    gather.kind = Kind::Allgather;
    gather.tensors.front().out = nullptr;
    const auto handle = engine.submit(std::move(gather));
    ASSERT_TRUE(static_cast<bool>(handle));
    const auto work = finish(engine, *handle);
    ASSERT_FALSE(work->error) << work->error->what();
    EXPECT_EQ(work->outputs.front().shape.front(), cluster.size() * (cluster.size() - 1) / 2);
    EXPECT_TRUE(engine.paths().contains("Fake"));
  });
}

TEST_P(Worlds, AVerbOfItsOwnIsUsedForWhatItKnows) {
  auto world = std::make_shared<FakeWorld>();
  world->verbs.insert(ForeignVerb::Allreduce);
  Cluster cluster(GetParam(), {}, -1, over(world));
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> known{static_cast<float>(rank), 1};
    EXPECT_FALSE(allreduce(engine, known));
    EXPECT_EQ(known.back(), static_cast<float>(cluster.size()));
    std::vector<std::int64_t> other{rank, 1};
    const auto handle = engine.submit(allreduce_of(other, "other"));
    ASSERT_TRUE(static_cast<bool>(handle));
    EXPECT_FALSE(finish(engine, *handle)->error);
    EXPECT_EQ(other.back(), cluster.size());
  });
  const std::lock_guard lock(world->mutex);
  for (const auto& [rank, called] : world->called) {
    EXPECT_EQ(std::count_if(called.begin(), called.end(),
                            [](const auto& each) { return each.starts_with("allreduce"); }),
              1);
  }
}

TEST(Foreign, FactorsAndPackingAreDoneAroundIt) {
  auto world = std::make_shared<FakeWorld>();
  world->verbs.insert(ForeignVerb::Allreduce);
  Cluster cluster({{0, 1}}, {}, -1, over(world));
  cluster.each([&](Rank, Engine& engine) {
    std::vector<float> one(3, 1.0F);
    std::vector<float> two(5, 2.0F);
    std::vector<float> out(5);
    Submission submission;
    submission.name = "group";
    submission.tensors = {tensor_of(one), tensor_of(two)};
    submission.tensors.back().out = reinterpret_cast<std::byte*>(out.data());
    submission.grouped = true;
    submission.mode = Mode::Awaited;
    submission.prescale = 3.0;
    submission.postscale = 0.5;
    const auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(static_cast<bool>(handle));
    EXPECT_FALSE(finish(engine, *handle)->error);
    EXPECT_EQ(one, std::vector<float>(3, 3.0F));
    EXPECT_EQ(two, std::vector<float>(5, 2.0F));
    EXPECT_EQ(out, std::vector<float>(5, 6.0F));
  });
}

TEST(Foreign, EverySetHasABackendOfItsOwnAndVerbsComeInOneOrder) {
  auto world = std::make_shared<FakeWorld>();
  world->verbs.insert(ForeignVerb::Allreduce);
  {
    Cluster cluster({{0, 1}, {2}}, {}, -1, over(world));
    cluster.each([&](Rank rank, Engine& engine) {
      const auto added = engine.submit({.kind = Kind::AddProcessSet, .ranks = {0, 2}});
      ASSERT_TRUE(static_cast<bool>(added));
      const auto number = static_cast<std::int32_t>(*finish(engine, *added)->value);
      std::vector<float> values{1};
      std::vector<float> all{1};
      if (rank != 1) {
        EXPECT_FALSE(allreduce(engine, values, number));
        EXPECT_EQ(values.front(), 2);
      }
      EXPECT_FALSE(allreduce(engine, all));
      EXPECT_EQ(all.front(), 3);
      const auto removed = engine.submit({.kind = Kind::RemoveProcessSet, .root = number});
      ASSERT_TRUE(static_cast<bool>(removed));
      finish(engine, *removed);
    });
  }
  const std::lock_guard lock(world->mutex);
  EXPECT_EQ(world->opened, 3 + 2);
  EXPECT_EQ(world->closed, 3 + 2);
  EXPECT_EQ(world->aborted, 0);
  // Messages aside, which meet in their own order.
  for (auto& [rank, called] : world->called) {
    std::erase_if(called, [](const auto& each) { return !each.starts_with("allreduce"); });
  }
  EXPECT_EQ(world->called[0], world->called[2]);
}

TEST(Foreign, ASlowVerbIsNoFailureAsLongAsItMoves) {
  auto world = std::make_shared<FakeWorld>();
  world->delay = milliseconds(20);  // each of many transfers
  Cluster cluster({{0, 1, 2}}, impatient(), -1, over(world));
  cluster.each([&](Rank, Engine& engine) {
    for (int i = 0; i < 10; ++i) {
      std::vector<float> values(10, 1.0F);
      const auto error = allreduce(engine, values);
      EXPECT_FALSE(error) << error->what();
    }
  });
}

TEST(Foreign, AnErrorIsTheSameOnEveryRankAndNamesClassAndRank) {
  auto world = std::make_shared<FakeWorld>();
  world->verbs.insert(ForeignVerb::Allreduce);
  world->fails = 1;
  Cluster cluster({{0, 1}, {2}}, {}, -1, over(world));
  cluster.each([&](Rank, Engine& engine) {
    std::vector<float> values{1};
    const auto error = allreduce(engine, values);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, Code::Backend);
    EXPECT_NE(error->what().find("Fake failed on rank 1 in allreduce: no luck today"),
              std::string::npos)
        << error->what();
    EXPECT_EQ(error->peer, 1);
  });
}

TEST(Foreign, AVerbThatWaitsTooLongIsAbortedAndFailsEverywhere) {
  auto world = std::make_shared<FakeWorld>();
  world->verbs.insert(ForeignVerb::Allreduce);
  world->waits = 0;
  const auto begin = Clock::now();
  {
    Cluster cluster({{0, 1}}, impatient(), -1, over(world));
    cluster.each([&](Rank, Engine& engine) {
      std::vector<float> values{1};
      const auto error = allreduce(engine, values);
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code, Code::Timeout) << error->what();
    });
  }
  EXPECT_LT(Clock::now() - begin, seconds(20));
  const std::lock_guard lock(world->mutex);
  EXPECT_EQ(world->aborted, 2);
  EXPECT_EQ(world->closed, 0);
}

TEST(Foreign, WhatAStuckVerbMayStillWriteToIsInUse) {
  auto world = std::make_shared<FakeWorld>();
  world->verbs.insert(ForeignVerb::Allreduce);
  world->stuck = 0;
  std::vector<std::vector<float>> values(2, std::vector<float>(100, 1.0F));
  Cluster cluster({{0, 1}}, impatient(), -1, over(world));
  cluster.each([&](Rank rank, Engine& engine) {
    struct Ending {
      std::binary_semaphore over{0};
      std::string code;
      std::int32_t in_use = -1;
    } ending;
    const std::int64_t shape[] = {100};
    float* const data = values[static_cast<std::size_t>(rank)].data();
    const FarandoleTensor tensor{.in = data,
                                 .out = data,
                                 .dtype = static_cast<std::int32_t>(DType::Float32),
                                 .dims = 1,
                                 .shape = shape,
                                 .device = 0,
                                 .device_index = 0,
                                 .stream = nullptr,
                                 .splits = nullptr,
                                 .members = 0,
                                 .received = nullptr};
    const FarandoleSubmission submission{.kind = static_cast<std::int32_t>(Kind::Allreduce),
                                         .op = static_cast<std::int32_t>(ReduceOp::Sum),
                                         .name = "x",
                                         .prescale = 1.0,
                                         .postscale = 1.0,
                                         .root = -1,
                                         .process_set = 0,
                                         .mode = static_cast<std::int32_t>(Mode::Callback),
                                         .grouped = 0,
                                         .count = 1,
                                         .tensors = &tensor,
                                         .allocate = nullptr,
                                         .done =
                                             [](void* context, const FarandoleOutcome* outcome) {
                                               auto* const mine = static_cast<Ending*>(context);
                                               mine->code =
                                                   outcome->code != nullptr ? outcome->code : "";
                                               mine->in_use = outcome->in_use;
                                               mine->over.release();
                                             },
                                         .context = &ending};
    FarandoleOutcome refused{};
    ASSERT_EQ(capi_table()->submit(&engine, &submission, &refused), kUnderWay);
    ending.over.acquire();
    EXPECT_EQ(ending.code, "timeout");
    EXPECT_EQ(ending.in_use, rank == 0 ? 1 : 0);
  });
  world->release();  // else the engine would give it more time
}

/// One member of a set of two, without an engine.
struct Alone {
  std::shared_ptr<FakeWorld> world = std::make_shared<FakeWorld>();
  Executor executor;
  ForeignBackends backends{std::make_shared<FakeClass>(world), executor.jobs()};
  std::unique_ptr<Backend> backend;

  Alone() {
    executor.start({});
    backend = backends.open({.ranks = {0, 1}, .self = 0, .groups = {{0, 1}}});
  }

  /// Until a verb has begun.
  void until_called() {
    for (const auto end = Clock::now() + seconds(10); Clock::now() < end;) {
      const std::lock_guard lock(world->mutex);
      if (!world->called[0].empty()) return;
    }
    ADD_FAILURE() << "no verb was called";
  }
};

TEST(Foreign, AnOperationMayGoBeforeItIsDone) {
  Alone alone;
  {
    std::vector<std::byte> data(100);
    auto recv = alone.backend->recv(1, data);
    const auto step = recv->step();
    ASSERT_TRUE(static_cast<bool>(step));
    EXPECT_EQ(*step, Step::Blocked);
    EXPECT_EQ(recv->waiting_for(), std::vector<Rank>{1});
    alone.until_called();
  }
  alone.backend.reset();
  EXPECT_TRUE(alone.backends.settle(seconds(10)));
  EXPECT_TRUE(alone.executor.stop(seconds(10)));
  const std::lock_guard lock(alone.world->mutex);
  EXPECT_EQ(alone.world->aborted, 1);
  EXPECT_EQ(alone.world->closed, 0);  // it has been aborted
}

TEST(Foreign, TransfersToOneMemberComeOneAfterAnother) {
  Alone alone;
  std::vector<std::byte> one(1, std::byte{1});
  std::vector<std::byte> two(2, std::byte{2});
  auto first = alone.backend->recv(1, one);
  auto second = alone.backend->recv(1, two);
  {
    const std::lock_guard lock(alone.world->mutex);
    auto& wire = alone.world->wires[{{0, 1}, 1, 0}];
    wire.emplace_back(1, std::byte{7});
    wire.emplace_back(2, std::byte{8});
  }
  const auto done = [](Operation& operation) {
    for (const auto end = Clock::now() + seconds(10); Clock::now() < end;) {
      auto step = operation.step();
      if (!step) return step.error().what();
      if (*step == Step::Done) return std::string();
      std::this_thread::yield();
    }
    return std::string("no end");
  };
  EXPECT_EQ(done(*second), "");
  EXPECT_EQ(done(*first), "");
  EXPECT_EQ(one.front(), std::byte{7});
  EXPECT_EQ(two.back(), std::byte{8});
}

TEST(Foreign, AStuckVerbIsLeftBehind) {
  auto values = std::make_shared<std::vector<float>>(100, 1.0F);  // it may still write there
  auto alone = std::make_unique<Alone>();
  const auto world = alone->world;
  world->verbs.insert(ForeignVerb::Allreduce);
  world->stuck = 0;
  auto* const data = reinterpret_cast<std::byte*>(values->data());
  auto operation = alone->backend->start(
      Allreduce{std::vector<Piece>{{.in = data, .out = data, .count = values->size()}}, {}});
  alone->until_called();
  const auto begin = Clock::now();
  operation.reset();
  EXPECT_GE(Clock::now() - begin, milliseconds(500));
  EXPECT_LT(Clock::now() - begin, seconds(10));
  EXPECT_FALSE(alone->executor.stop(milliseconds(10)));
  alone.reset();
  world->release();  // nothing of the backend is there any more but what the thread holds
  for (const auto end = Clock::now() + seconds(10); world.use_count() > 1 && Clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(world.use_count(), 1);
}

}  // namespace
}  // namespace farandole::testing

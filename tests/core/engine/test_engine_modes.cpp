/// Engines as threads of one process: how callers learn of the end, and what is refused before
/// anything has changed.

#include <gtest/gtest.h>

#include <semaphore>

#include "cluster.h"

namespace farandole::testing {
namespace {

constexpr Mode kModes[] = {Mode::Asynchronous, Mode::Awaited, Mode::Blocking, Mode::Callback};
const std::vector<Groups> kWorlds{{{0}}, {{0, 1}}, {{0}, {1}}, {{0, 1}, {2}}};

class EngineModes : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EngineModes, ::testing::ValuesIn(kWorlds), world_name);

struct End {
  std::optional<Error> error;
  std::optional<std::int64_t> value;
  Shape shape;  ///< of the result that the engine allocated; 0 elements if there is none
};

End end_of(const Work& work) {
  End end{.error = work.error, .value = work.value, .shape = {0}};
  if (!work.outputs.empty() && work.outputs.front().buffer.data() != nullptr) {
    end.shape = work.outputs.front().shape;
  }
  return end;
}

/// Submits in that mode, and waits for the end in the mode's own way.
End run(Engine& engine, Submission submission, Mode mode) {
  struct Told {
    std::binary_semaphore over{0};
    End end;
  };
  const auto told = std::make_shared<Told>();
  submission.mode = mode;
  if (mode == Mode::Callback) {
    submission.on_done = [told](const Work& work) {
      told->end = end_of(work);
      told->over.release();
    };
  }
  const auto handle = engine.submit(std::move(submission));
  if (!handle) return {.error = handle.error(), .value = {}, .shape = {0}};
  const bool may_be_over = mode == Mode::Blocking || mode == Mode::Callback;
  EXPECT_TRUE(*handle > 0 || (*handle == 0 && may_be_over));
  if (*handle == 0) return {.error = {}, .value = {}, .shape = {0}};
  if (mode == Mode::Callback) {
    EXPECT_TRUE(told->over.try_acquire_for(std::chrono::seconds(30)));
    EXPECT_TRUE(engine.take(*handle));
    return told->end;
  }
  const auto work = finish(engine, *handle);
  return work ? end_of(*work) : End{.error = Error{.message = "no end"}, .value = {}, .shape = {0}};
}

TEST_P(EngineModes, each_ends_with_what_there_is_to_take) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    const auto size = static_cast<float>(cluster.size());
    for (int round = 0; round < 20; ++round) {
      for (const Mode mode : kModes) {
        std::vector<float> values(3, static_cast<float>(rank));
        const End sum = run(engine, allreduce_of(values, "sum"), mode);
        ASSERT_FALSE(sum.error) << sum.error->what();
        ASSERT_EQ(values[2], size * (size - 1) / 2);
        ASSERT_EQ(sum.shape, Shape{0}) << "it had memory for its result";

        Submission gather = allreduce_of(values, "rows");
        gather.kind = Kind::Allgather;
        gather.tensors.front().out = nullptr;
        const End rows = run(engine, std::move(gather), mode);
        ASSERT_FALSE(rows.error) << rows.error->what();
        ASSERT_EQ(rows.shape, Shape{3 * cluster.size()}) << static_cast<int>(mode);

        ASSERT_FALSE(run(engine, {.kind = Kind::Barrier}, mode).error);

        const End joined = run(engine, {.kind = Kind::Join}, mode);
        ASSERT_FALSE(joined.error) << joined.error->what();
        ASSERT_TRUE(joined.value) << static_cast<int>(mode);

        const End added =
            run(engine, {.kind = Kind::AddProcessSet, .ranks = {cluster.size() - 1}}, mode);
        if (cluster.size() == 1) {
          ASSERT_TRUE(added.error) << "the world is such a set";
          continue;
        }
        ASSERT_EQ(added.value, 1) << (added.error ? added.error->what() : "");
        const End removed = run(engine, {.kind = Kind::RemoveProcessSet, .root = 1}, mode);
        ASSERT_EQ(removed.value, 1) << (removed.error ? removed.error->what() : "");
      }
    }
  });
}

/// Calls without name are counted, so one that had been counted would meet no other here.
TEST_P(EngineModes, memory_that_nothing_serves_is_refused_before_anything_changes) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 5; ++round) {
      for (const Mode mode : kModes) {
        std::vector<float> values(4, 1.0F);
        for (const char* name : {"", "x"}) {
          Submission refused = allreduce_of(values, name);
          refused.tensors.front().device = Device::Xpu;
          refused.tensors.front().device_index = 3;
          if (rank == 0) {
            const End end = run(engine, std::move(refused), mode);
            ASSERT_TRUE(end.error);
            EXPECT_EQ(end.error->code, Code::Unsupported);
            const std::string full = *name == 0 ? "allreduce" : "allreduce.x";
            EXPECT_EQ(end.error->tensor, full);
            EXPECT_EQ(end.error->message,
                      "Tensor of " + full +
                          " is on device XPU 3: XPU tensors are not supported yet; move the "
                          "tensor to the CPU first");
          }
          const End after = run(engine, allreduce_of(values, name), mode);
          ASSERT_FALSE(after.error) << after.error->what();
        }
        ASSERT_EQ(values[0], static_cast<float>(cluster.size() * cluster.size()));
      }
    }
  });
}

TEST_P(EngineModes, a_refused_tensor_of_a_group_is_named_by_its_place) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank, Engine& engine) {
    for (const Mode mode : kModes) {
      std::vector<float> values(4, 1.0F);
      Submission group = allreduce_of(values, "g");
      group.grouped = true;
      group.tensors.push_back(group.tensors.front());
      group.tensors.push_back(group.tensors.front());
      group.tensors[1].device = Device::Mps;
      const End end = run(engine, group, mode);
      ASSERT_TRUE(end.error);
      EXPECT_EQ(end.error->code, Code::Unsupported);
      EXPECT_TRUE(end.error->message.starts_with("Tensor 2 of 3 of grouped_allreduce.g is on"))
          << end.error->message;
      // Nothing of the group is in flight.
      group.tensors.erase(group.tensors.begin(), group.tensors.begin() + 2);
      ASSERT_FALSE(run(engine, group, mode).error);
    }
  });
}

TEST_P(EngineModes, a_result_as_large_as_the_tensor_needs_memory) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank, Engine& engine) {
    for (const Kind kind : {Kind::Allreduce, Kind::Broadcast}) {
      for (const Mode mode : kModes) {
        std::vector<float> values(4, 1.0F);
        Submission good = allreduce_of(values, "x");
        good.kind = kind;
        good.root = 0;
        ASSERT_FALSE(run(engine, good, mode).error);
        Submission bad = good;
        bad.tensors.front().out = nullptr;
        const End end = run(engine, std::move(bad), mode);
        ASSERT_TRUE(end.error);
        EXPECT_EQ(end.error->code, Code::InvalidArgument) << end.error->message;
      }
    }
  });
}

}  // namespace
}  // namespace farandole::testing

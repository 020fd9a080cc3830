/// Engines as threads of one process that read each other's memory: overlapping sets, groups of
/// tensors, rows that differ, a rank that is lost.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <random>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<std::vector<Rank>> kSets{{0, 1, 2}, {0, 1}, {1, 2}};  // by number

bool in(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// Some of everything that may be read directly, and what it should come to.
struct Gather {
  std::int32_t set = 0;
  std::vector<std::vector<std::int64_t>> inputs = {};  // by tensor
  std::vector<std::vector<std::int64_t>> expected = {};
  Handle handle = 0;
  std::string named = {};  // else one of its own in each round
  Mode mode = Mode::Asynchronous;
  std::optional<Error> error = {};  // of a call that stayed
};

std::size_t rows_of(int round, Rank rank, std::size_t tensor) {
  return static_cast<std::size_t>((round * 7 + rank * 5 + static_cast<int>(tensor) * 3) % 4) * 9001;
}

void start(Engine& engine, Gather& one, Rank rank, int round, std::size_t tensors) {
  Submission submission;
  submission.kind = Kind::Allgather;
  submission.name =
      one.named.empty() ? "set" + std::to_string(one.set) + "." + std::to_string(round) : one.named;
  submission.mode = one.mode;
  submission.process_set = one.set;
  submission.grouped = tensors > 1;
  for (std::size_t t = 0; t < tensors; ++t) {
    one.expected.emplace_back();
    for (const Rank member : kSets[static_cast<std::size_t>(one.set)]) {
      one.expected.back().insert(one.expected.back().end(), rows_of(round, member, t),
                                 member * 100 + round);
    }
    one.inputs.emplace_back(rows_of(round, rank, t), rank * 100 + round);
  }
  for (auto& input : one.inputs) {
    submission.tensors.push_back(tensor_of(input));
    submission.tensors.back().out = nullptr;
  }
  auto handle = engine.submit(std::move(submission));
  if (handle) {
    one.handle = *handle;
  } else {
    one.error = std::move(handle).error();
  }
}

void expect_right(Engine& engine, const Gather& one) {
  ASSERT_FALSE(one.error) << one.error->what();
  const auto work = finish(engine, one.handle);
  ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
  ASSERT_EQ(work->outputs.size(), one.expected.size());
  for (std::size_t t = 0; t < one.expected.size(); ++t) {
    const Output& output = work->outputs[t];
    ASSERT_EQ(output.shape, (Shape{static_cast<std::int64_t>(one.expected[t].size())}));
    const auto* got = reinterpret_cast<const std::int64_t*>(output.buffer.data());
    ASSERT_TRUE(std::equal(one.expected[t].begin(), one.expected[t].end(), got));
  }
}

EngineOptions with_sets() {
  EngineOptions options;
  options.negotiator.process_sets = {kSets[1], kSets[2]};
  return options;
}

TEST(EngineDirect, groups_with_rows_that_differ_in_overlapping_sets) {
  Cluster cluster({{0, 1, 2}}, with_sets());
  cluster.each([](Rank rank, Engine& engine) {
    std::mt19937 order(static_cast<unsigned>(rank));
    for (int round = 0; round < 20; ++round) {
      std::vector<Gather> all;
      for (std::int32_t set = 0; set < 3; ++set) {
        if (in(kSets[static_cast<std::size_t>(set)], rank)) all.push_back({.set = set});
      }
      std::shuffle(all.begin(), all.end(), order);
      for (Gather& one : all) {
        start(engine, one, rank, round, static_cast<std::size_t>(1 + (round + one.set) % 3));
      }
      std::shuffle(all.begin(), all.end(), order);
      for (const Gather& one : all) expect_right(engine, one);
    }
    const auto paths = engine.paths();
    const auto direct = paths.find("shm.direct");
    ASSERT_NE(direct, paths.end());
    EXPECT_GT(direct->second.operations, 10U);
  });
}

/// Somebody waits for them, so that members tell rows and addresses with their proposals. Tensors
/// lie elsewhere each time.
TEST(EngineDirect, rows_and_addresses_that_were_told_ahead) {
  Cluster cluster({{0, 1, 2}}, with_sets());
  cluster.each([](Rank rank, Engine& engine) {
    for (int round = 0; round < 30; ++round) {
      for (std::int32_t set = 0; set < 3; ++set) {
        const auto& members = kSets[static_cast<std::size_t>(set)];
        if (!in(members, rank)) continue;
        Gather one{.set = set};
        one.named = round % 5 == 4 ? "elsewhere" : "set" + std::to_string(set);
        one.mode = Mode::Blocking;
        const std::size_t tensors = static_cast<std::size_t>(1 + (set + round / 5) % 3);
        start(engine, one, rank, round, tensors);
        ASSERT_NO_FATAL_FAILURE(expect_right(engine, one));
      }
    }
    const auto paths = engine.paths();
    const auto direct = paths.find("shm.direct");
    ASSERT_NE(direct, paths.end());
    EXPECT_GT(direct->second.operations, 10U);
  });
}

/// Splits differ from rank to rank and from call to call; some send nothing to some.
TEST(EngineDirect, splits_that_were_told_ahead) {
  Cluster cluster({{0, 1, 2}}, {});
  const auto split = [](int round, Rank from, Rank to) {
    return static_cast<std::int64_t>((round * 5 + from * 3 + to * 2) % 4) * 7001;
  };
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values;
      std::vector<float> expected;
      Submission submission;
      submission.kind = Kind::Alltoall;
      submission.name = "a";
      submission.mode = Mode::Blocking;
      std::vector<std::int64_t> splits;
      for (Rank other = 0; other < 3; ++other) {
        splits.push_back(split(round, rank, other));
        values.insert(values.end(), static_cast<std::size_t>(splits.back()),
                      static_cast<float>(rank * 100 + other * 10 + round));
        expected.insert(expected.end(), static_cast<std::size_t>(split(round, other, rank)),
                        static_cast<float>(other * 100 + rank * 10 + round));
      }
      submission.tensors.push_back(tensor_of(values));
      submission.tensors.back().out = nullptr;
      submission.tensors.back().splits = splits;
      const auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      const auto* got = reinterpret_cast<const float*>(work->outputs.front().buffer.data());
      ASSERT_EQ(work->outputs.front().shape, (Shape{static_cast<std::int64_t>(expected.size())}));
      ASSERT_TRUE(std::ranges::equal(expected, std::span(got, expected.size())));
    }
  });
}

TEST(EngineDirect, the_loss_of_a_rank_is_the_same_error_as_elsewhere) {
  // A rank that is stopped may be read until its peers hear of it; what they read counts no more.
  std::array<std::deque<Gather>, 3> kept;
  Cluster cluster({{0, 1, 2}}, with_sets());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0;; ++round) {
      Gather& one = kept[static_cast<std::size_t>(rank)].emplace_back();
      if (rank == 1 && round == 20) return cluster.cut(1);
      // Half of them with addresses that were told ahead.
      one.mode = round % 2 == 0 ? Mode::Blocking : Mode::Asynchronous;
      one.named = round % 2 == 0 ? "told" : "";
      start(engine, one, rank, round, 1);
      if (!one.error) {
        const auto work = finish(engine, one.handle);
        ASSERT_TRUE(work);
        one.error = work->error;
      }
      if (!one.error) continue;
      EXPECT_EQ(one.error->code, Code::PeerLost) << one.error->what();
      EXPECT_EQ(one.error->peer, 1) << one.error->what();
      return;
    }
  });
}

}  // namespace
}  // namespace farandole::testing

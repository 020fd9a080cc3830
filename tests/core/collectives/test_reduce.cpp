/// Reduce on engines as threads: the root gets the bits of an allreduce, the others keep theirs.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cluster.h"
#include "collectives/collective.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{
    {{0}},           {{0, 1}},         {{0, 1, 2}},       {{0}, {1}},
    {{0}, {1}, {2}}, {{0, 2}, {1, 3}}, {{0, 1, 2, 3, 4}}, {{0, 1, 2}, {3, 4, 5, 6}, {7}},
};

class ReduceWorld : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReduceWorld, ::testing::ValuesIn(kWorlds), world_name);

using Bytes = std::vector<std::byte>;

struct Case {
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  std::size_t count = 0;
  double prescale = 1.0;
  double postscale = 1.0;
};

Bytes given(const Case& one, Rank rank, unsigned seed) {
  std::minstd_rand random(seed * 64 + static_cast<unsigned>(rank) + 1);
  Bytes bytes(one.count * size_of(one.dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

Submission submission_of(Kind kind, const Case& one, std::string name, const Bytes& in, Bytes& out,
                         Rank root) {
  Submission submission;
  submission.kind = kind;
  submission.name = std::move(name);
  submission.op = one.op;
  submission.prescale = one.prescale;
  submission.postscale = one.postscale;
  submission.root = root;
  submission.mode = Mode::Awaited;
  submission.tensors.push_back({.in = in.data(),
                                .out = out.data(),
                                .dtype = one.dtype,
                                .shape = {static_cast<std::int64_t>(one.count)}});
  return submission;
}

std::optional<Error> run(Engine& engine, Submission submission) {
  auto handle = engine.submit(std::move(submission));
  if (!handle) return std::move(handle).error();
  if (*handle == 0) return std::nullopt;
  const auto work = finish(engine, *handle);
  if (!work) return Error{.message = "it did not end"};
  return work->error;
}

/// In place and beside it, each way to the end.
void expect_reduced(Engine& engine, Rank rank, const Case& one, Rank root, const std::string& name,
                    unsigned seed, bool blocks = false) {
  const Bytes in = given(one, rank, seed);
  Bytes all(in.size());
  ASSERT_FALSE(run(engine, submission_of(Kind::Allreduce, one, name, in, all, -1)));
  const Bytes& want = rank == root ? all : in;
  Bytes beside(in.size());
  Bytes place = in;
  Submission apart = submission_of(Kind::Reduce, one, name, in, beside, root);
  Submission in_place = submission_of(Kind::Reduce, one, name + "_", place, place, root);
  for (Submission* each : {&apart, &in_place}) {
    if (blocks) each->mode = Mode::Blocking;
    const auto error = run(engine, std::move(*each));
    ASSERT_FALSE(error) << error->what();
  }
  EXPECT_TRUE(beside == want) << name << " to " << root << ", " << one.count << " of "
                              << name_of(one.dtype) << " by " << name_of(one.op);
  EXPECT_TRUE(place == want) << name << " in place to " << root << ", " << one.count << " of "
                             << name_of(one.dtype) << " by " << name_of(one.op);
}

/// By the ways for short and long batches, and for more than a window.
constexpr std::size_t kCounts[] = {0, 1, 101, 9001, 70'001, 140'003};

TEST_P(ReduceWorld, the_root_gets_the_bits_of_the_allreduce_and_the_others_keep_theirs) {
  Cluster cluster(GetParam());
  const bool small = cluster.size() <= 3;
  cluster.each([&](Rank rank, Engine& engine) {
    unsigned seed = 0;
    for (std::uint8_t dtype = 0; dtype < kReducedDTypes; ++dtype) {
      for (const ReduceOp op :
           {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
        for (const std::size_t count : kCounts) {
          ++seed;
          // Large worlds take part of the table: what differs there is the way, not the arithmetic.
          if (!small && seed % 5 != 0) continue;
          Case one{.dtype = static_cast<DType>(dtype), .op = op, .count = count};
          if (seed % 3 == 0) {
            one.prescale = 0.5;
            one.postscale = 3.0;
          }
          const Rank root = static_cast<Rank>(seed) % cluster.size();
          expect_reduced(engine, rank, one, root, "x", seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_P(ReduceWorld, more_than_one_window) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (Rank root = 0; root < cluster.size(); root += 3) {
      const Case one{.op = ReduceOp::Average, .count = 2'300'001, .prescale = 0.3};
      expect_reduced(engine, rank, one, root, "long", 7);
    }
  });
}

/// Blocking calls of what is known: the first is negotiated, the others go by the fast path.
TEST_P(ReduceWorld, the_fast_path_has_the_same_bits) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 4; ++round) {
      for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Max}) {
        for (const std::size_t count : {1, 77, 3000, 60'000}) {
          const Case one{.dtype = round % 2 == 0 ? DType::Float32 : DType::BFloat16,
                         .op = op,
                         .count = count,
                         .prescale = 0.7,
                         .postscale = 1.3};
          expect_reduced(engine, rank, one, cluster.size() - 1,
                         std::string(name_of(op)) + std::to_string(count), 3, true);
        }
      }
    }
  });
  const auto paths = cluster[0].paths();
  const auto fast = std::ranges::find_if(
      paths, [](const auto& path) { return path.first.find("fast") != std::string::npos; });
  EXPECT_TRUE(cluster.size() == 1 || fast != paths.end());
}

/// Tensors that end inside shares and windows, in one batch or as a group, to different roots.
TEST_P(ReduceWorld, batches_and_groups) {
  Cluster cluster(GetParam());
  constexpr std::size_t kTensors = 24;
  constexpr std::size_t kRoots = 3;
  cluster.each([&](Rank rank, Engine& engine) {
    const auto size = static_cast<Rank>(cluster.size());
    for (const std::size_t scale : {1, 300, 4000}) {
      std::vector<std::vector<float>> tensors;
      std::vector<Handle> handles;
      Submission group{.kind = Kind::Reduce, .name = "all", .grouped = true, .root = size - 1};
      for (std::size_t t = 0; t < kTensors; ++t) {
        tensors.emplace_back(t * 37 % 71 * scale, static_cast<float>(rank + 1));
      }
      auto grouped = tensors;
      for (std::size_t t = 0; t < kTensors; ++t) {
        group.tensors.push_back(tensor_of(grouped[t]));
        Submission one = allreduce_of(tensors[t], "t" + std::to_string(t), false);
        one.kind = Kind::Reduce;
        one.root = static_cast<Rank>(t % kRoots) % size;
        auto handle = engine.submit(std::move(one));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        handles.push_back(*handle);
      }
      engine.mark_all_waited();
      const auto expect = [&](const std::vector<float>& values, Rank root, std::size_t t) {
        const auto want = static_cast<float>(rank == root ? size * (size + 1) / 2 : rank + 1);
        EXPECT_EQ(std::ranges::count(values, want), std::ssize(values)) << t << " to " << root;
      };
      for (std::size_t t = 0; t < kTensors; ++t) {
        const auto work = finish(engine, handles[t]);
        ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
        expect(tensors[t], static_cast<Rank>(t % kRoots) % size, t);
      }
      const auto error = run(engine, std::move(group));
      ASSERT_FALSE(error) << error->what();
      for (std::size_t t = 0; t < kTensors; ++t) expect(grouped[t], size - 1, t);
    }
  });
}

TEST(ReduceErrors, what_a_rank_sees_by_itself_is_refused_at_once) {
  Cluster cluster({{0, 1}});
  const Bytes in(16);
  Bytes out(16);
  const auto refusal = [&](const Case& one, Rank root) {
    return *run(cluster[0], submission_of(Kind::Reduce, one, "x", in, out, root));
  };
  const Error adasum = refusal({.op = ReduceOp::Adasum, .count = 4}, 0);
  EXPECT_EQ(adasum.code, Code::Unsupported);
  EXPECT_EQ(adasum.message, "reduce does not support Adasum; use allreduce");
  for (const Rank root : {-1, 2}) {
    const Error error = refusal({.count = 4}, root);
    EXPECT_EQ(error.code, Code::InvalidArgument);
    EXPECT_EQ(error.message, "reduce received invalid root rank " + std::to_string(root) +
                                 " for provided process set");
  }
}

TEST(ReduceErrors, disagreements_are_errors_everywhere) {
  Cluster cluster({{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    const auto expect = [&](const Case& one, Rank root, const std::string& text) {
      const Bytes in(one.count * size_of(one.dtype));
      Bytes out = in;
      const auto error = run(engine, submission_of(Kind::Reduce, one, "x", in, out, root));
      ASSERT_TRUE(error) << text;
      EXPECT_EQ(error->code, Code::Mismatch);
      EXPECT_NE(error->message.find(text), std::string::npos) << error->message;
    };
    const auto odd = static_cast<std::size_t>(rank);
    for (int round = 0; round < 2; ++round) {
      expect({.count = 4}, rank,
             "Mismatched REDUCE root ranks: One rank specified root rank 0, but another rank "
             "specified root rank 1. Rank 0: REDUCE Sum of float32 [4] to root 0; rank 1: REDUCE "
             "Sum of float32 [4] to root 1.");
      expect({.op = rank == 0 ? ReduceOp::Sum : ReduceOp::Max, .count = 4}, 0,
             "Mismatched reduction operation: One rank specified Sum, but another rank specified "
             "Max.");
      expect({.count = 4 + odd}, 1, "Mismatched REDUCE tensor shapes");
      expect({.dtype = rank == 0 ? DType::Int32 : DType::Float32, .count = 4}, 1,
             "Mismatched data types");
      expect({.count = 4, .prescale = 1.0 + rank}, 1,
             "Mismatched prescale and/or postscale factors");
    }
    std::vector<float> values(3, 1.0F);
    EXPECT_FALSE(run(engine, allreduce_of(values, "after")));
  });
}

TEST(ReduceJoin, ranks_that_have_joined_count_as_zeros_unless_they_are_the_root) {
  for (const Groups& groups : {Groups{{0, 1, 2}}, Groups{{0}, {1}, {2}}, Groups{{0, 1}, {2}}}) {
    Cluster cluster(groups);
    cluster.each([&](Rank rank, Engine& engine) {
      if (rank != 0) {
        for (const std::size_t count : {5, 80'000}) {
          std::vector<float> values(count, 6.0F);
          Submission reduce = allreduce_of(values, "x");
          reduce.kind = Kind::Reduce;
          reduce.op = ReduceOp::Average;
          reduce.root = 2;
          const auto error = run(engine, reduce);
          ASSERT_FALSE(error) << error->what();
          EXPECT_EQ(values.front(), rank == 2 ? 4.0F : 6.0F);
          EXPECT_EQ(values.back(), rank == 2 ? 4.0F : 6.0F);
          reduce.root = 0;
          const auto none = run(engine, reduce);
          ASSERT_TRUE(none);
          EXPECT_EQ(none->code, Code::Mismatch);
          EXPECT_NE(none->message.find("REDUCE needs its root: rank 0 has joined."),
                    std::string::npos)
              << none->message;
        }
      }
      EXPECT_FALSE(run(engine, {.kind = Kind::Join}));
    });
  }
}

TEST(ReduceFailures, a_rank_that_is_gone_ends_it) {
  for (const Groups& groups : {Groups{{0, 1, 2}}, Groups{{0}, {1}, {2}}}) {
    EngineOptions options;
    options.log_level = LogLevel::Fatal;
    options.heartbeat = {.warning = std::chrono::milliseconds(250),
                         .limit = std::chrono::milliseconds(1000)};
    Cluster cluster(groups, options, 1);
    cluster.each([&](Rank rank, Engine& engine) {
      if (rank == 1) return;
      std::vector<float> values(100'000, 1.0F);
      Submission reduce = allreduce_of(values, "x");
      reduce.kind = Kind::Reduce;
      reduce.root = 0;
      const auto error = run(engine, std::move(reduce));
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code, Code::PeerLost) << error->what();
      EXPECT_EQ(error->peer, 1);
    });
  }
}

}  // namespace
}  // namespace farandole::testing

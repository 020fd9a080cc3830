/// Operations that only move data, and reducescatter, on the fast path: data of all sizes, also
/// such that differ between ranks, so that one rank's fit into its proposal and another's do not.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <semaphore>
#include <thread>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{{{0, 1}},   {{0, 1, 2}},   {{0, 1, 2, 3}},
                                  {{0}, {1}}, {{0, 1}, {2}}, {{0, 3}, {1, 2}}};

class FastMoves : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(Worlds, FastMoves, ::testing::ValuesIn(kWorlds), world_name);

/// To the end, somebody standing still for it; null if nothing is to be taken.
std::shared_ptr<Work> run(Engine& engine, Submission submission) {
  auto handle = engine.submit(blocking(std::move(submission)));
  EXPECT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  if (!handle || *handle == 0) return nullptr;
  auto work = finish(engine, *handle);
  EXPECT_TRUE(work != nullptr);
  if (work == nullptr) return nullptr;
  if (work->error) ADD_FAILURE() << work->error->what();
  // Who has stood for long gets a handle, and looks around, also for what has no result.
  return work->has_result() ? work : nullptr;
}

/// So many elements from that one on; none if the output has not so many.
std::vector<float> part_of(const Output& output, std::size_t from, std::size_t count) {
  if (from + count > static_cast<std::size_t>(element_count(output.shape))) return {};
  std::vector<float> values(count);
  if (count != 0) std::memcpy(values.data(), output.buffer.data() + 4 * from, 4 * count);
  return values;
}

std::vector<float> taken(const Output& output) {
  return part_of(output, 0, static_cast<std::size_t>(element_count(output.shape)));
}

/// The value at that place of what a rank brings.
float value_of(Rank rank, std::size_t at, int round) {
  return static_cast<float>(1000 * rank) + static_cast<float>(at % 997) +
         static_cast<float>(round) / 8;
}

std::vector<float> values_of(Rank rank, std::size_t count, int round) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i, round);
  return values;
}

Tensor rows_of(std::vector<float>& values, std::int64_t columns) {
  Tensor tensor = tensor_of(values);
  tensor.out = nullptr;
  tensor.shape = {static_cast<std::int64_t>(values.size()) / columns, columns};
  return tensor;
}

/// Sizes at both sides of every border: of the room, of what is told to other hosts, of what two,
/// three and four ranks may bring.
const std::vector<std::size_t> kElements{1,    7,    1000,  3000,  4096,  6143,  6144, 6145,
                                         8192, 9000, 12288, 16380, 16384, 16385, 40000};

TEST_P(FastMoves, broadcasts_from_every_root) {
  Cluster cluster(GetParam());
  until_fast(cluster, 16, [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 4 * cluster.size(); ++round) {
      for (const std::size_t count : kElements) {
        const Rank root =
            static_cast<Rank>(count + static_cast<std::size_t>(round)) % cluster.size();
        std::vector<float> in = values_of(rank, count, round);
        std::vector<float> out(round % 2 == 0 ? 0 : count, -1.0F);
        Submission submission;
        submission.kind = Kind::Broadcast;
        submission.name = "x" + std::to_string(count);
        submission.root = root;
        submission.tensors = {tensor_of(in)};
        if (!out.empty()) submission.tensors[0].out = reinterpret_cast<std::byte*>(out.data());
        EXPECT_EQ(run(engine, std::move(submission)), nullptr);
        const auto& result = out.empty() ? in : out;
        ASSERT_EQ(result, values_of(root, count, round)) << count << " from " << root;
        if (!out.empty()) {
          ASSERT_EQ(in, values_of(rank, count, round)) << "the input has changed";
        }
      }
    }
  });
}

TEST_P(FastMoves, reducescatters_have_the_bits_of_the_regular_way) {
  Cluster cluster(GetParam());
  until_fast(cluster, 16, [&](Rank rank, Engine& engine) {
    const auto submission_of = [&](std::vector<float>& values, std::int64_t columns, int round) {
      Submission submission;
      submission.kind = Kind::Reducescatter;
      submission.name = "x" + std::to_string(values.size()) + "." + std::to_string(columns);
      submission.op = round % 2 == 0 ? ReduceOp::Sum : ReduceOp::Average;
      submission.prescale = round % 3 == 0 ? 0.3 : 1.0;
      submission.tensors = {rows_of(values, columns)};
      return submission;
    };
    for (int round = 0; round < 6; ++round) {
      for (const std::size_t count : kElements) {
        const std::int64_t columns = count % 3 == 0 ? 3 : 1;
        std::vector<float> values = values_of(rank, count, round);
        for (float& value : values) value /= 7;
        auto regular = engine.submit(submission_of(values, columns, round));
        ASSERT_TRUE(static_cast<bool>(regular));
        const auto wanted = finish(engine, *regular);
        const auto work = run(engine, submission_of(values, columns, round));
        ASSERT_TRUE(work != nullptr && wanted != nullptr);
        ASSERT_EQ(work->outputs[0].shape, wanted->outputs[0].shape);
        ASSERT_EQ(taken(work->outputs[0]), taken(wanted->outputs[0])) << count;
      }
    }
  });
}

/// How many rows that rank brings: also none, and also more than fit.
std::int64_t rows(Rank rank, int round, std::size_t most, std::size_t which = 0) {
  std::minstd_rand chance(static_cast<unsigned>(1 + rank + 31 * round) +
                          static_cast<unsigned>(7919 * (which + most)));
  chance.discard(5);
  return chance() % 4 == 0 ? 0 : static_cast<std::int64_t>(chance() % (most + 1));
}

TEST_P(FastMoves, allgathers_of_different_rows) {
  Cluster cluster(GetParam());
  until_fast(cluster, 21, [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 12; ++round) {
      for (const std::size_t count : kElements) {
        Submission submission;
        submission.kind = Kind::Allgather;
        submission.name = "x" + std::to_string(count);
        submission.grouped = count % 2 == 0;
        const std::size_t tensors = submission.grouped ? 3 : 1;
        std::vector<std::vector<float>> in;
        for (std::size_t t = 0; t < tensors; ++t) {
          in.push_back(values_of(
              rank, static_cast<std::size_t>(rows(rank, round, count, t)) * (t + 1), round));
        }
        for (std::size_t t = 0; t < tensors; ++t) {
          submission.tensors.push_back(rows_of(in[t], static_cast<std::int64_t>(t) + 1));
        }
        const auto work = run(engine, std::move(submission));
        ASSERT_TRUE(work != nullptr);
        ASSERT_EQ(work->outputs.size(), tensors);
        for (std::size_t t = 0; t < tensors; ++t) {
          std::size_t at = 0;
          for (Rank other = 0; other < cluster.size(); ++other) {
            const auto part = values_of(
                other, static_cast<std::size_t>(rows(other, round, count, t)) * (t + 1), round);
            ASSERT_EQ(part_of(work->outputs[t], at, part.size()), part)
                << count << ", tensor " << t << " from " << other;
            at += part.size();
          }
          const Shape shape{static_cast<std::int64_t>(at / (t + 1)),
                            static_cast<std::int64_t>(t) + 1};
          ASSERT_EQ(work->outputs[t].shape, shape);
        }
      }
    }
  });
}

TEST_P(FastMoves, alltoalls_of_different_splits) {
  Cluster cluster(GetParam());
  const auto size = static_cast<std::size_t>(cluster.size());
  until_fast(cluster, 21, [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 12; ++round) {
      for (const std::size_t count : kElements) {
        const auto split = [&](Rank from, std::size_t to) {
          return round % 3 == 0 ? static_cast<std::int64_t>(count % 100)
                                : rows(from, round, count / size + 1, to);
        };
        std::vector<std::int64_t> splits;
        std::size_t sum = 0;
        for (std::size_t to = 0; to < size; ++to) {
          splits.push_back(split(rank, to));
          sum += static_cast<std::size_t>(splits.back());
        }
        const std::size_t rest = round % 5 == 4 ? 3 : 0;  // rows that nobody gets
        std::vector<float> in = values_of(rank, 2 * (sum + rest), round);
        std::vector<std::int32_t> received(size, -1);
        Submission submission;
        submission.kind = Kind::Alltoall;
        submission.name = "x" + std::to_string(count);
        submission.tensors = {rows_of(in, 2)};
        if (round % 3 != 0 || rest != 0) submission.tensors[0].splits = splits;
        submission.tensors[0].received = received.data();
        const auto work = run(engine, std::move(submission));
        ASSERT_TRUE(work != nullptr);
        std::vector<float> want;
        for (std::size_t from = 0; from < size; ++from) {
          const auto sender = static_cast<Rank>(from);
          std::size_t before = 0;
          for (std::size_t to = 0; to < static_cast<std::size_t>(rank); ++to) {
            before += static_cast<std::size_t>(split(sender, to));
          }
          const auto mine = static_cast<std::size_t>(split(sender, static_cast<std::size_t>(rank)));
          ASSERT_EQ(static_cast<std::size_t>(received[from]), mine);
          for (std::size_t i = 2 * before; i < 2 * (before + mine); ++i) {
            want.push_back(value_of(sender, i, round));
          }
        }
        ASSERT_EQ(work->outputs[0].shape, (Shape{static_cast<std::int64_t>(want.size() / 2), 2}));
        ASSERT_EQ(taken(work->outputs[0]), want) << count << ", round " << round;
      }
    }
  });
}

/// One rank's arguments are wrong: it hears so at once, and the others are not left with a result.
TEST_P(FastMoves, wrong_splits_are_refused_on_that_rank_and_the_world_goes_on) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> in(static_cast<std::size_t>(cluster.size()), static_cast<float>(rank));
    const auto submission = [&] {
      Submission made;
      made.kind = Kind::Alltoall;
      made.name = "x";
      made.tensors = {rows_of(in, 1)};
      return made;
    };
    for (int round = 0; round < 20; ++round) {
      if (rank == 1) {
        auto wrong = submission();
        wrong.tensors[0].splits = {1, 2, 3, 4, 5, 6, 7};
        const auto refused = engine.submit(blocking(std::move(wrong)));
        ASSERT_FALSE(static_cast<bool>(refused));
        EXPECT_EQ(refused.error().code, Code::InvalidArgument);
      }
      const auto work = run(engine, submission());
      ASSERT_TRUE(work != nullptr);
      std::vector<float> want;
      for (Rank other = 0; other < cluster.size(); ++other) {
        want.push_back(static_cast<float>(other));
      }
      ASSERT_EQ(taken(work->outputs[0]), want);
    }
  });
}

/// A group whose results belong to somebody else's memory, as those of a graph do.
TEST_P(FastMoves, results_go_where_the_provider_says) {
  Cluster cluster(GetParam());
  until_fast(cluster, 21, [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 40; ++round) {
      std::vector<float> in = values_of(rank, 10, round);
      std::vector<float> out;
      Submission submission;
      submission.kind = Kind::Allgather;
      submission.name = "x";
      submission.tensors = {rows_of(in, 1)};
      submission.mode = Mode::Callback;
      submission.provide = [&](std::size_t, const Shape& shape, DType) {
        out.resize(static_cast<std::size_t>(element_count(shape)));
        return reinterpret_cast<std::byte*>(out.data());
      };
      std::binary_semaphore over{0};
      submission.on_done = [&](const Work& work) {
        EXPECT_FALSE(work.error);
        over.release();
      };
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle));
      if (*handle != 0) {
        engine.take(*handle);
        ASSERT_TRUE(over.try_acquire_for(std::chrono::seconds(30)));
      }
      std::vector<float> want;
      for (Rank other = 0; other < cluster.size(); ++other) {
        const auto part = values_of(other, 10, round);
        want.insert(want.end(), part.begin(), part.end());
      }
      ASSERT_EQ(out, want);
    }
  });
}

/// Every kind under names that come again, from two threads of each rank, each rank in its own way
/// and at its own pace: whoever comes otherwise closes the fast path for the others in the middle
/// of a round.
TEST_P(FastMoves, all_kinds_in_all_ways_from_two_threads) {
  Cluster cluster(GetParam());
  const int size = cluster.size();
  cluster.each([&](Rank rank, Engine& engine) {
    const auto work_through = [&](int thread) {
      std::minstd_rand plan(static_cast<unsigned>(thread) + 77);  // the same on all ranks
      std::minstd_rand own(static_cast<unsigned>(17 * rank + thread) + 5);
      for (int round = 0; round < 400; ++round) {
        const auto kind = plan() / 7 % 5;
        const std::size_t count = 1 + plan() % (plan() % 8 == 0 ? 20000 : 600);
        const auto root = static_cast<Rank>(plan() % static_cast<unsigned>(size));
        std::vector<float> in;
        std::vector<float> want;
        Submission submission;
        submission.name = std::to_string(thread) + "." + std::to_string(plan() % 3);
        const auto brought = [&](Rank other) {
          return kind == 2 || kind == 3
                     ? count % 97 + static_cast<std::size_t>((other * 31 + round) % 40)
                     : count;
        };
        in = values_of(rank,
                       kind == 3 ? brought(rank) * static_cast<std::size_t>(size) : brought(rank),
                       round);
        submission.tensors = {rows_of(in, 1)};
        switch (kind) {
          case 0:
            submission.kind = Kind::Broadcast;
            submission.root = root;
            submission.tensors[0].out = reinterpret_cast<std::byte*>(in.data());
            want = values_of(root, count, round);
            break;
          case 1:
            submission.kind = Kind::Allreduce;
            submission.op = ReduceOp::Max;
            submission.tensors[0].out = reinterpret_cast<std::byte*>(in.data());
            want = values_of(static_cast<Rank>(size - 1), count, round);
            break;
          case 2:
            submission.kind = Kind::Allgather;
            for (Rank other = 0; other < size; ++other) {
              const auto part = values_of(other, brought(other), round);
              want.insert(want.end(), part.begin(), part.end());
            }
            break;
          case 3:
            submission.kind = Kind::Alltoall;
            for (Rank other = 0; other < size; ++other) {
              const std::size_t begin = brought(other) * static_cast<std::size_t>(rank);
              for (std::size_t i = 0; i < brought(other); ++i) {
                want.push_back(value_of(other, begin + i, round));
              }
            }
            break;
          default: {
            submission.kind = Kind::Reducescatter;
            submission.op = ReduceOp::Sum;
            const auto all = static_cast<std::size_t>(size);
            const auto first_of = [&](std::size_t m) {
              return count / all * m + std::min(m, count % all);
            };
            const auto mine = static_cast<std::size_t>(rank);
            for (std::size_t i = first_of(mine); i < first_of(mine + 1); ++i) {
              float sum = 0.0F;
              for (Rank other = 0; other < size; ++other)
                sum += std::floor(value_of(other, i, round));
              want.push_back(sum);
            }
            for (float& value : in) value = std::floor(value);
          }
        }
        const bool in_place = submission.tensors[0].out != nullptr;
        submission.mode = own() / 5 % 4 == 0 ? Mode::Asynchronous : Mode::Blocking;
        if (own() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 900));
        auto handle = engine.submit(std::move(submission));
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        if (*handle != 0) {
          const auto work = finish(engine, *handle);
          ASSERT_TRUE(work != nullptr);
          ASSERT_FALSE(work->error) << work->error->what();
          if (!in_place) in = taken(work->outputs[0]);
        }
        ASSERT_EQ(in, want) << "kind " << kind << ", round " << round << ", thread " << thread;
      }
    };
    std::jthread other([&] { work_through(1); });
    work_through(0);
  });
}

TEST_P(FastMoves, what_comes_while_a_proposal_is_left_open_changes_nothing_of_it) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> sums(100);
    std::vector<float> moved(100);
    std::binary_semaphore over{0};
    const auto allreduce = [&] {
      sums = values_of(rank, sums.size(), 0);
      Submission submission;
      submission.name = "sum";
      submission.op = ReduceOp::Sum;
      submission.tensors = {tensor_of(sums)};
      submission.mode = Mode::Callback;
      submission.on_done = [&over](const Work& work) {
        EXPECT_FALSE(work.error);
        over.release();
      };
      return submission;
    };
    const auto broadcast = [&] {
      moved = values_of(rank, moved.size(), 1);
      Submission submission;
      submission.kind = Kind::Broadcast;
      submission.name = "move";
      submission.root = 0;
      submission.tensors = {tensor_of(moved)};
      return submission;
    };
    std::vector<float> want(sums.size());
    for (Rank q = 0; q < cluster.size(); ++q) {
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += value_of(q, i, 0);
    }
    for (int round = 0; round < 4; ++round) {
      // The others come so late that the first rank's call has returned meanwhile.
      if (round > 1 && rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      auto first = engine.submit(allreduce());
      ASSERT_TRUE(static_cast<bool>(first)) << first.error().what();
      EXPECT_EQ(run(engine, broadcast()), nullptr);
      if (*first != 0) {
        ASSERT_TRUE(over.try_acquire_for(std::chrono::seconds(30)));
        EXPECT_NE(engine.take(*first), nullptr);
      }
      ASSERT_EQ(sums, want) << round;
      ASSERT_EQ(moved, values_of(0, moved.size(), 1)) << round;
    }
  });
}

TEST(EngineFastMoves, no_memory_for_a_result_is_an_error_of_that_rank) {
  Cluster cluster({{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> in(10, 1.0F);
    for (int round = 0; round < 5; ++round) {
      Submission submission;
      submission.kind = Kind::Allgather;
      submission.name = "x";
      submission.tensors = {rows_of(in, 1)};
      submission.mode = Mode::Blocking;
      std::vector<float> out(20);
      submission.provide = [&](std::size_t, const Shape&, DType) -> std::byte* {
        const bool none = round == 4 && rank == 1;
        return none ? nullptr : reinterpret_cast<std::byte*>(out.data());
      };
      auto handle = engine.submit(std::move(submission));
      if (round == 4 && rank == 1) {
        ASSERT_FALSE(static_cast<bool>(handle));
        EXPECT_NE(handle.error().what().find("no memory for a result of 80 bytes"),
                  std::string::npos)
            << handle.error().what();
        EXPECT_EQ(handle.error().tensor, "allgather.x");
      } else {
        ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
        if (*handle != 0) finish(engine, *handle);
      }
    }
  });
}

}  // namespace
}  // namespace farandole::testing

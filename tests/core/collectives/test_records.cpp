/// Alltoall and reducescatter on engines as threads: what moves where, and what is refused.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <random>

#include "cluster.h"
#include "collectives/collective.h"
#include "random_numbers.h"

namespace farandole::testing {
namespace {

TEST(Records, EveryNumberOfAKindHasOne) {
  for (std::uint8_t number = 0; number < kKinds; ++number) {
    const auto kind = static_cast<Kind>(number);
    EXPECT_EQ(find_collective(kind) == nullptr, kind == Kind::Join) << int{number};
    ASSERT_NE(rules_of(kind).describe, nullptr) << int{number};
    Signature signature;
    signature.kind = kind;
    const std::string text = rules_of(kind).describe(signature);
    EXPECT_EQ(text.substr(0, text.find(' ')), rules_of(kind).name);
  }
}

/// Member 0 of two. Keeps what it is asked to gather, and moves nothing.
class KeepingBackend final : public Backend {
 public:
  KeepingBackend() : Backend({.ranks = {0, 1}, .self = 0, .groups = {{0, 1}}}) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "keeping"; }
  std::unique_ptr<Operation> send(int, std::span<const std::byte>) override { return nullptr; }
  std::unique_ptr<Operation> recv(int, std::span<std::byte>) override { return nullptr; }
  std::unique_ptr<Operation> start(Verb verb) override {
    plans.push_back(std::get<GatherPlan>(std::move(verb)));
    return std::make_unique<Done>();
  }
  std::vector<GatherPlan> plans;

 private:
  class Done final : public Operation {
   public:
    Result<Step> step() override { return Step::Done; }
  };
};

/// Two tensors of an allgather, of 2 and 3 rows; member 1 brings 4 and 0.
TEST(Records, NumbersThatWereToldAreNotGathered) {
  for (const bool told : {false, true}) {
    std::array<std::vector<float>, 2> inputs{std::vector<float>(2), std::vector<float>(3)};
    std::array<std::vector<float>, 2> outputs{std::vector<float>(6), std::vector<float>(3)};
    const std::array<Told, 2> all{Told{.numbers = {2, 4}, .addresses = {1000, 2000}},
                                  Told{.numbers = {3, 0}, .addresses = {3000, 4000}}};
    std::vector<Task> tasks;
    for (std::size_t t = 0; t < 2; ++t) {
      Signature signature;
      signature.kind = Kind::Allgather;
      signature.dtype = DType::Float32;
      signature.shape = {static_cast<std::int64_t>(inputs[t].size())};
      tasks.push_back({.signature = std::make_shared<const Signature>(signature),
                       .in = reinterpret_cast<const std::byte*>(inputs[t].data()),
                       .out = reinterpret_cast<std::byte*>(outputs[t].data()),
                       .told = told ? &all[t] : nullptr});
    }
    KeepingBackend backend;
    const auto operation = find_collective(Kind::Allgather)->start(backend, tasks);
    EXPECT_TRUE(operation->waiting_for().empty());
    EXPECT_FALSE(operation->due());
    EXPECT_EQ(operation->path(), "");
    ASSERT_TRUE(static_cast<bool>(operation->step()));
    if (!told) {
      ASSERT_EQ(backend.plans.size(), 2U);  // the numbers, which nobody fills in here, and the data
      EXPECT_TRUE(backend.plans[1].theirs.empty());
      continue;
    }
    ASSERT_EQ(backend.plans.size(), 1U);
    const GatherPlan& plan = backend.plans[0];
    ASSERT_EQ(plan.out.size(), 2U);
    const auto bytes = [&](std::size_t member) {
      return std::vector{plan.out[member][0].size(), plan.out[member][1].size()};
    };
    EXPECT_EQ(bytes(0), (std::vector<std::size_t>{8, 12}));
    EXPECT_EQ(bytes(1), (std::vector<std::size_t>{16, 0}));
    EXPECT_EQ(plan.theirs, (std::vector<std::vector<std::uint64_t>>{{1000, 3000}, {2000, 4000}}));
    EXPECT_EQ(*operation->step(), Step::Done);
  }
}

const std::vector<Groups> kWorlds{
    {{0}},         {{0, 1}},         {{0, 1, 2}},       {{0}, {1}},
    {{0, 1}, {2}}, {{0, 2}, {1, 3}}, {{0, 1, 2, 3, 4}}, {{0, 1, 2}, {3, 4, 5, 6}, {7}},
};

class RecordWorld : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(Worlds, RecordWorld, ::testing::ValuesIn(kWorlds), [](const auto& world) {
  std::string name;
  for (const auto& group : world.param) {
    if (!name.empty()) name += "_";
    for (const Rank rank : group) name += std::to_string(rank);
  }
  return name;
});

std::size_t index(int number) { return static_cast<std::size_t>(number); }

/// `columns` elements per row.
Submission rows_of(Kind kind, const std::string& name, std::vector<float>& values,
                   std::int64_t columns, bool waited = true) {
  Submission submission;
  submission.kind = kind;
  submission.name = name;
  submission.mode = waited ? Mode::Awaited : Mode::Asynchronous;
  Tensor tensor = tensor_of(values);
  tensor.shape = {static_cast<std::int64_t>(values.size()) / columns, columns};
  tensor.out = nullptr;
  submission.tensors.push_back(std::move(tensor));
  return submission;
}

std::shared_ptr<Work> run(Engine& engine, Submission submission) {
  auto handle = engine.submit(std::move(submission));
  EXPECT_TRUE(static_cast<bool>(handle)) << (handle ? "" : handle.error().what());
  return handle ? finish(engine, *handle) : nullptr;
}

std::vector<float> floats(const Output& output) {
  std::vector<float> values(static_cast<std::size_t>(element_count(output.shape)));
  if (!values.empty()) std::memcpy(values.data(), output.buffer.data(), values.size() * 4);
  return values;
}

// --- alltoall -----------------------------------------------------------------------------------

using Counts = std::vector<std::vector<std::int64_t>>;  // rows by sender, then receiver

/// Value of an element of row `row` (counted in what `from` sends to `to`).
float value_of(int from, int to, std::int64_t row, std::int64_t column) {
  return static_cast<float>(from * 1000000 + to * 100000 + (row * 7 + column) % 99991);
}

/// `stay`: rows of each rank that go nowhere.
void expect_alltoall(Cluster& cluster, const Counts& counts, std::int64_t columns,
                     std::int64_t stay, const std::string& name) {
  const int size = cluster.size();
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> values;
    std::vector<float> want;
    std::vector<std::int32_t> came;
    for (int other = 0; other < size; ++other) {
      for (std::int64_t row = 0; row < counts[index(rank)][index(other)]; ++row) {
        for (std::int64_t c = 0; c < columns; ++c) values.push_back(value_of(rank, other, row, c));
      }
      const std::int64_t coming = counts[index(other)][index(rank)];
      came.push_back(static_cast<std::int32_t>(coming));
      for (std::int64_t row = 0; row < coming; ++row) {
        for (std::int64_t c = 0; c < columns; ++c) want.push_back(value_of(other, rank, row, c));
      }
    }
    values.resize(values.size() + index(static_cast<int>(stay * columns)), -1.0f);
    std::vector<std::int32_t> received(index(size), -1);
    Submission submission = rows_of(Kind::Alltoall, name, values, columns);
    submission.tensors[0].splits = counts[index(rank)];
    submission.tensors[0].received = received.data();
    const auto work = run(engine, std::move(submission));
    ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
    EXPECT_EQ(received, came);
    ASSERT_NE(work->outputs[0].buffer.data(), nullptr) << "frontends take it, also if it is empty";
    EXPECT_EQ(work->outputs[0].shape,
              (Shape{static_cast<std::int64_t>(want.size()) / columns, columns}));
    EXPECT_EQ(floats(work->outputs[0]), want);
  });
}

TEST_P(RecordWorld, alltoall_moves_random_numbers_of_rows) {
  Cluster cluster(GetParam());
  std::mt19937 random(11);
  for (int round = 0; round < 12; ++round) {
    const int most = round % 3 == 0 ? 3 : round % 3 == 1 ? 60 : 1500;
    Counts counts(index(cluster.size()), std::vector<std::int64_t>(index(cluster.size())));
    for (auto& line : counts) {
      for (auto& count : line) count = static_cast<std::int64_t>(random() % index(most));
    }
    expect_alltoall(cluster, counts, 1 + round % 5 * 3, round % 2, "x");
  }
}

TEST_P(RecordWorld, alltoall_with_ranks_that_send_or_get_nothing) {
  Cluster cluster(GetParam());
  const std::size_t size = index(cluster.size());
  const Counts some(size, std::vector<std::int64_t>(size, 5));
  Counts silent = some;
  silent[0].assign(size, 0);
  expect_alltoall(cluster, silent, 3, 0, "silent");
  Counts deaf = some;
  for (auto& line : deaf) line.back() = 0;
  expect_alltoall(cluster, deaf, 3, 0, "deaf");
  expect_alltoall(cluster, Counts(size, std::vector<std::int64_t>(size, 0)), 3, 0, "none");
  expect_alltoall(cluster, Counts(size, std::vector<std::int64_t>(size, 0)), 3, 4, "all stay");
  Counts one(size, std::vector<std::int64_t>(size, 0));
  one.back()[0] = 200000;
  expect_alltoall(cluster, one, 2, 0, "one long");
}

TEST_P(RecordWorld, alltoall_without_splits_shares_evenly) {
  Cluster cluster(GetParam());
  const int size = cluster.size();
  cluster.each([&](Rank rank, Engine& engine) {
    const std::int64_t each = 2 + rank;  // not the same everywhere
    std::vector<float> values(index(size * static_cast<int>(each)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(rank * 100 + static_cast<int>(i) / static_cast<int>(each));
    }
    std::vector<float> want;
    for (int other = 0; other < size; ++other) {
      want.insert(want.end(), index(2 + other), static_cast<float>(other * 100 + rank));
    }
    const auto work = run(engine, rows_of(Kind::Alltoall, "", values, 1));  // nobody wants numbers
    ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
    EXPECT_EQ(floats(work->outputs[0]), want);
  });
}

Error refusal(Engine& engine, Submission submission) {
  auto handle = engine.submit(std::move(submission));
  EXPECT_FALSE(static_cast<bool>(handle));
  return handle ? Error{} : std::move(handle).error();
}

TEST(AlltoallErrors, unfit_splits_are_refused_at_once) {
  Cluster cluster({{0, 1}});
  std::vector<float> values(5);
  const auto with = [&](std::vector<std::int64_t> splits) {
    Submission submission = rows_of(Kind::Alltoall, "x", values, 1);
    submission.tensors[0].splits = std::move(splits);
    return refusal(cluster[0], std::move(submission));
  };
  EXPECT_NE(with({}).message.find("not a multiple of the 2 members"), std::string::npos);
  EXPECT_NE(with({1}).message.find("splits has 1 entries, but 2"), std::string::npos);
  EXPECT_NE(with({1, 1, 1}).message.find("splits has 3 entries, but 2"), std::string::npos);
  EXPECT_NE(with({-1, 3}).message.find("-1"), std::string::npos);
  EXPECT_NE(with({3, 3}).message.find("larger than tensor's first dimension, 5"),
            std::string::npos);
  EXPECT_NE(with({std::int64_t{1} << 31, 0}).message.find("2^31"), std::string::npos);
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(with({kHuge, kHuge}).code, Code::InvalidArgument);
  Submission scalar = rows_of(Kind::Alltoall, "x", values, 1);
  scalar.tensors[0].shape = {};
  EXPECT_EQ(refusal(cluster[0], std::move(scalar)).code, Code::InvalidArgument);
}

/// All ranks get that mismatch, and the name can be used again.
void expect_mismatch(const std::function<Submission(Rank, std::vector<float>&)>& submission,
                     const std::string& text) {
  Cluster cluster({{0, 1}});
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 2; ++round) {
      std::vector<float> values(24);
      const auto work = run(engine, submission(rank, values));
      ASSERT_TRUE(work && work->error) << text;
      EXPECT_EQ(work->error->code, Code::Mismatch);
      EXPECT_NE(work->error->message.find(text), std::string::npos) << work->error->message;
    }
  });
}

TEST(AlltoallErrors, disagreements_are_errors_everywhere) {
  const auto shaped = [](std::vector<float>& values, Shape shape) {
    Submission submission = rows_of(Kind::Alltoall, "x", values, 1);
    submission.tensors[0].shape = std::move(shape);
    return submission;
  };
  expect_mismatch([&](Rank rank, auto& v) { return shaped(v, {2, 3 + rank}); },
                  "Mismatched ALLTOALL tensor shapes: One rank sent a tensor with dimension 1 "
                  "equal to 3, but another rank sent a tensor with dimension 1 equal to 4.");
  expect_mismatch(
      [&](Rank rank, auto& v) { return rank == 0 ? shaped(v, {2}) : shaped(v, {2, 1}); },
      "Mismatched ALLTOALL tensor shapes: One rank sent a tensor of rank 1, but "
      "another rank sent a tensor of rank 2.");
  expect_mismatch(
      [&](Rank rank, auto& v) {
        Submission submission = shaped(v, {2, 3});
        if (rank == 1) submission.tensors[0].dtype = DType::Int32;
        return submission;
      },
      "Mismatched data types: One rank had type float32, but another rank had type int32.");
}

// --- allgather ----------------------------------------------------------------------------------

/// Their sum is one that no number of rows can be. The tensors have no elements, so no memory
/// lacks.
TEST(Allgather, more_rows_than_any_tensor_has_are_refused_everywhere) {
  for (const bool apart : {false, true}) {
    Cluster cluster(apart ? Groups{{0}, {1}} : Groups{{0, 1}});
    cluster.each([](Rank rank, Engine& engine) {
      for (int round = 0; round < 12; ++round) {
        const bool too_many = round % 3 == 2;
        std::vector<float> values;
        Submission submission = rows_of(Kind::Allgather, "x", values, 1);
        submission.mode = Mode::Blocking;
        submission.tensors[0].shape = {too_many ? std::int64_t{1} << 62 : rank + 1, 0};
        auto handle = engine.submit(std::move(submission));
        std::optional<Error> error;
        if (!handle) {
          error = std::move(handle).error();
        } else if (const auto work = finish(engine, *handle)) {
          error = work->error;
          if (!error) {
            EXPECT_EQ(work->outputs.front().shape, (Shape{3, 0}));
          }
        }
        ASSERT_EQ(error.has_value(), too_many) << round << " " << (error ? error->what() : "");
      }
    });
  }
}

// --- reducescatter ------------------------------------------------------------------------------

std::size_t first_row(std::size_t rows, int size, int member) {
  std::size_t first = 0;
  for (int m = 0; m < member; ++m) first += rows / index(size) + (index(m) < rows % index(size));
  return first;
}

struct Case {
  std::size_t rows;
  std::size_t columns;
  ReduceOp op;
  double prescale;
  double postscale;
};

std::vector<float> inputs(Rank rank, std::size_t count, std::size_t seed) {
  return reference::normal_numbers(count, seed * 64 + index(rank));
}

const std::vector<Case> kCases{
    {1, 1, ReduceOp::Sum, 1.0, 1.0},     {3, 1, ReduceOp::Average, 1.0, 1.0},
    {8, 5, ReduceOp::Sum, 0.3, 1.0},     {17, 3, ReduceOp::Average, 0.7, 1.3},
    {0, 4, ReduceOp::Sum, 1.0, 1.0},     {7, 0, ReduceOp::Average, 1.0, 1.0},
    {1001, 9, ReduceOp::Sum, 1.0, 0.25}, {40003, 11, ReduceOp::Average, 1.0, 1.0},
};

/// Also with memory from the caller.
TEST_P(RecordWorld, reducescatter_gives_the_rows_of_the_allreduce) {
  Cluster cluster(GetParam());
  const int size = cluster.size();
  cluster.each([&](Rank rank, Engine& engine) {
    for (const bool given : {false, true}) {
      for (std::size_t i = 0; i < kCases.size(); ++i) {
        const Case& one = kCases[i];
        auto values = inputs(rank, one.rows * one.columns, i);
        auto all = values;
        const auto begin = first_row(one.rows, size, rank) * one.columns;
        const auto end = first_row(one.rows, size, rank + 1) * one.columns;
        Submission reduce = allreduce_of(all, "all");
        Submission scatter = rows_of(Kind::Reducescatter, "own", values, 1);
        scatter.tensors[0].shape = {static_cast<std::int64_t>(one.rows),
                                    static_cast<std::int64_t>(one.columns)};
        std::vector<float> own(end - begin + 1, -1.0f);
        if (given) scatter.tensors[0].out = reinterpret_cast<std::byte*>(own.data());
        for (Submission* submission : {&reduce, &scatter}) {
          submission->op = one.op;
          submission->prescale = one.prescale;
          submission->postscale = one.postscale;
        }
        const auto whole = run(engine, std::move(reduce));
        const auto part = run(engine, std::move(scatter));
        ASSERT_TRUE(whole && !whole->error && part && !part->error);
        const std::vector<float> want(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                      all.begin() + static_cast<std::ptrdiff_t>(end));
        if (given) {
          EXPECT_EQ(own.back(), -1.0f);
          own.pop_back();
          EXPECT_EQ(own, want) << i;
        } else {
          ASSERT_NE(part->outputs[0].buffer.data(), nullptr);
          EXPECT_EQ(floats(part->outputs[0]), want) << i;
          EXPECT_EQ(part->outputs[0].shape.back(), static_cast<std::int64_t>(one.columns));
        }
      }
    }
  });
}

TEST_P(RecordWorld, reducescatters_of_a_batch_and_of_a_group) {
  Cluster cluster(GetParam());
  const int size = cluster.size();
  constexpr std::size_t kTensors = 23;
  const auto rows = [](std::size_t t) { return t * 37 % 71; };
  const auto expect = [&](const std::vector<float>& got, Rank rank, std::size_t t) {
    std::vector<float> want;
    for (std::size_t row = first_row(rows(t), size, rank); row < first_row(rows(t), size, rank + 1);
         ++row) {
      want.insert(want.end(), 3,
                  static_cast<float>(row * index(size) + index(size * (size - 1) / 2)));
    }
    EXPECT_EQ(got, want) << t;
  };
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<std::vector<float>> tensors;
    std::vector<Handle> handles;
    Submission group;
    group.grouped = true;
    for (std::size_t t = 0; t < kTensors; ++t) {
      auto& values = tensors.emplace_back(rows(t) * 3);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(i / 3 + index(rank));
      }
    }
    for (std::size_t t = 0; t < kTensors; ++t) {
      Submission submission =
          rows_of(Kind::Reducescatter, "t" + std::to_string(t), tensors[t], 3, false);
      group.kind = submission.kind;
      group.tensors.push_back(submission.tensors[0]);
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      handles.push_back(*handle);
    }
    engine.mark_all_waited();
    for (std::size_t t = 0; t < kTensors; ++t) {
      const auto work = finish(engine, handles[t]);
      ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      expect(floats(work->outputs[0]), rank, t);
    }
    const auto work = run(engine, std::move(group));
    ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
    for (std::size_t t = 0; t < kTensors; ++t) expect(floats(work->outputs[t]), rank, t);
  });
}

TEST(ReducescatterErrors, other_operators_and_scalars_are_refused_at_once) {
  Cluster cluster({{0, 1}});
  std::vector<float> values(4);
  for (const ReduceOp op : {ReduceOp::Adasum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    Submission submission = rows_of(Kind::Reducescatter, "x", values, 1);
    submission.op = op;
    EXPECT_EQ(refusal(cluster[0], std::move(submission)).code, Code::Unsupported) << name_of(op);
  }
  Submission scalar = rows_of(Kind::Reducescatter, "x", values, 1);
  scalar.tensors[0].shape = {};
  EXPECT_EQ(refusal(cluster[0], std::move(scalar)).code, Code::InvalidArgument);
}

TEST(ReducescatterErrors, disagreements_are_errors_everywhere) {
  const auto plain = [](std::vector<float>& values) {
    return rows_of(Kind::Reducescatter, "x", values, 2);
  };
  expect_mismatch(
      [&](Rank rank, auto& v) {
        Submission submission = plain(v);
        submission.tensors[0].shape = {3 + rank, 2};
        return submission;
      },
      "Mismatched REDUCESCATTER tensor shapes: One rank sent a tensor of shape [3, 2], but another "
      "rank sent a tensor of shape [4, 2].");
  expect_mismatch(
      [&](Rank rank, auto& v) {
        Submission submission = plain(v);
        submission.op = rank == 0 ? ReduceOp::Average : ReduceOp::Sum;
        return submission;
      },
      "Mismatched prescale and/or postscale factors: One rank specified Average, but another rank "
      "specified Sum.");
  expect_mismatch(
      [&](Rank rank, auto& v) {
        Submission submission = plain(v);
        submission.prescale = 1.0 + rank;
        return submission;
      },
      "Mismatched prescale and/or postscale factors: One rank sent factors");
  expect_mismatch(
      [&](Rank rank, auto& v) {
        Submission submission = plain(v);
        if (rank == 1) submission.tensors[0].dtype = DType::Int32;
        return submission;
      },
      "Mismatched data types: One rank had type float32, but another rank had type int32.");
}

}  // namespace
}  // namespace farandole::testing

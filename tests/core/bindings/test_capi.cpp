/// The table of C functions that framework glue is bound to.

#include <gtest/gtest.h>

#include <atomic>

#include "bindings/capi.h"
#include "cluster.h"

namespace farandole::testing {
namespace {

struct Ending {
  std::atomic<int> calls{0};
  std::string code;
  std::string message;
  std::int64_t value = -1;
  std::vector<float> result;
};

void done(void* context, const FarandoleOutcome* outcome) {
  auto* ending = static_cast<Ending*>(context);
  ending->value = outcome->value;
  if (outcome->code != nullptr) {
    ending->code = outcome->code;
    ending->message = outcome->message;
  }
  ++ending->calls;
  ending->calls.notify_all();
}

constexpr std::int64_t kOne[] = {1};

/// `shape` has one dimension.
FarandoleTensor in_place(float* values, const std::int64_t* shape) {
  return {.in = values,
          .out = values,
          .dtype = static_cast<std::int32_t>(DType::Float32),
          .dims = 1,
          .shape = shape,
          .device = 0,
          .device_index = 0,
          .stream = nullptr,
          .splits = nullptr,
          .members = 0,
          .received = nullptr};
}

FarandoleSubmission allreduce(const FarandoleTensor* tensors, int count, const char* name,
                              Ending& ending) {
  return {.kind = static_cast<std::int32_t>(Kind::Allreduce),
          .op = static_cast<std::int32_t>(ReduceOp::Sum),
          .name = name,
          .prescale = 1.0,
          .postscale = 1.0,
          .root = -1,
          .process_set = 0,
          .mode = static_cast<std::int32_t>(Mode::Callback),
          .grouped = count > 1,
          .count = count,
          .tensors = tensors,
          .allocate = nullptr,
          .done = done,
          .context = &ending};
}

/// Submits, and waits for the end.
void submit(Engine& engine, const FarandoleSubmission& submission, Ending& ending) {
  const int before = ending.calls;
  FarandoleOutcome outcome{};
  const auto state = capi_table()->submit(&engine, &submission, &outcome);
  if (state == kOver) return;
  ASSERT_EQ(state, kUnderWay) << outcome.message;
  ending.calls.wait(before);
}

class Capi : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Capi, ::testing::Values(1, 2));

Groups group_of(int ranks) {
  Groups groups(1);
  for (Rank rank = 0; rank < ranks; ++rank) groups.front().push_back(rank);
  return groups;
}

TEST(CapiNumbers, that_mean_nothing_are_refused_before_they_index_anything) {
  const FarandoleApi& api = *capi_table();
  Cluster cluster(group_of(1));
  cluster.each([&](Rank, Engine& engine) {
    float value = 1;
    Ending ending;
    const auto expect_refused = [&](auto&& change, const std::string& what) {
      const std::int64_t negative[] = {-1};
      FarandoleTensor tensor = in_place(&value, kOne);
      FarandoleSubmission submission = allreduce(&tensor, 1, "x", ending);
      change(submission, tensor);
      if (tensor.shape == nullptr) tensor.shape = negative;
      FarandoleOutcome outcome{};
      ASSERT_EQ(api.submit(&engine, &submission, &outcome), 1) << what;
      EXPECT_STREQ(outcome.code, "invalid_argument");
      EXPECT_NE(std::string(outcome.message).find(what), std::string::npos) << outcome.message;
    };
    using R = FarandoleSubmission;
    using T = FarandoleTensor;
    expect_refused([](R& r, T&) { r.kind = kKinds; }, "kind " + std::to_string(kKinds));
    expect_refused([](R& r, T&) { r.kind = -1; }, "kind -1");
    expect_refused([](R& r, T&) { r.op = 6; }, "op 6");
    expect_refused([](R& r, T&) { r.mode = 4; }, "mode 4");
    for (int mode = 0; mode < static_cast<int>(Mode::Callback); ++mode) {
      expect_refused([mode](R& r, T&) { r.mode = mode; }, "mode " + std::to_string(mode));
    }
    expect_refused([](R& r, T&) { r.count = 0; }, "count of tensors of 0");
    expect_refused([](R&, T& t) { t.dtype = static_cast<int>(kDTypes); },
                   "dtype " + std::to_string(kDTypes));
    expect_refused([](R&, T& t) { t.dtype = -1; }, "dtype -1");
    expect_refused([](R&, T& t) { t.dtype = 256; }, "dtype 256");
    expect_refused([](R&, T& t) { t.device = kDevices; }, "device 4");
    expect_refused([](R&, T& t) { t.device = -1; }, "device -1");
    expect_refused([](R&, T& t) { t.dims = -1; }, "dimensions of -1");
    expect_refused([](R&, T& t) { t.dims = 65; }, "dimensions of 65");
    expect_refused([](R&, T& t) { t.shape = nullptr; }, "extent of -1");
    expect_refused([](R& r, T&) { r.done = nullptr; }, "callback");
  });
  EXPECT_EQ(capi_table()->version, kApiVersion);
}

TEST_P(Capi, single_tensors_and_groups_end_in_one_callback) {
  const FarandoleApi& api = *capi_table();
  ASSERT_EQ(api.version, kApiVersion);
  ASSERT_EQ(api.bytes, sizeof(FarandoleApi));
  Cluster cluster(group_of(GetParam()));
  cluster.each([&](Rank rank, Engine& engine) {
    for (const int count : {1, 3}) {
      std::vector<std::vector<float>> values(3,
                                             std::vector<float>(5, static_cast<float>(rank + 1)));
      const std::int64_t shape[] = {5};
      std::vector<FarandoleTensor> tensors;
      for (auto& value : values) {
        tensors.push_back(in_place(value.data(), shape));
      }
      Ending ending;
      const auto submission = allreduce(tensors.data(), count, "x", ending);
      submit(engine, submission, ending);
      EXPECT_EQ(ending.code, "");
      const float want = GetParam() == 1 ? 1.0F : 3.0F;
      for (int i = 0; i < count; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)][4], want);
    }
  });
}

TEST_P(Capi, what_is_over_at_once_calls_nobody) {
  Cluster cluster(group_of(GetParam()));
  std::atomic<int> at_once = 0;
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> values(5, static_cast<float>(rank + round));
      const std::int64_t shape[] = {5};
      const FarandoleTensor tensor = in_place(values.data(), shape);
      Ending ending;
      const auto submission = allreduce(&tensor, 1, "x", ending);
      submit(engine, submission, ending);
      if (ending.calls == 0) ++at_once;
      ASSERT_EQ(ending.code, "");
      ASSERT_EQ(values[4], static_cast<float>(GetParam() == 1 ? round : 2 * round + 1));
    }
  });
  EXPECT_GT(at_once, 0) << "nothing was agreed on by the ranks themselves";
}

TEST_P(Capi, a_join_ends_with_the_rank_that_was_last) {
  Cluster cluster(group_of(GetParam()));
  cluster.each([&](Rank, Engine& engine) {
    Ending ending;
    FarandoleSubmission submission = allreduce(nullptr, 0, nullptr, ending);
    submission.kind = static_cast<std::int32_t>(Kind::Join);
    submit(engine, submission, ending);
    EXPECT_EQ(ending.code, "");
    EXPECT_GE(ending.value, 0);
    EXPECT_LT(ending.value, GetParam());
  });
}

TEST_P(Capi, results_of_unknown_size_go_where_the_caller_says) {
  Cluster cluster(group_of(GetParam()));
  cluster.each([&](Rank rank, Engine& engine) {
    const std::int64_t shape[] = {rank + 1};
    std::vector<float> values(static_cast<std::size_t>(rank + 1), static_cast<float>(rank));
    FarandoleTensor tensor = in_place(values.data(), shape);
    tensor.out = nullptr;
    Ending ending;
    FarandoleSubmission submission = allreduce(&tensor, 1, "x", ending);
    submission.kind = static_cast<std::int32_t>(Kind::Allgather);
    submission.allocate = [](void* context, std::int32_t, const std::int64_t* made,
                             std::int32_t dims) {
      auto& result = static_cast<Ending*>(context)->result;
      EXPECT_EQ(dims, 1);
      result.resize(static_cast<std::size_t>(made[0]));
      return static_cast<void*>(result.data());
    };
    submit(engine, submission, ending);
    EXPECT_EQ(ending.result,
              GetParam() == 1 ? std::vector<float>{0} : (std::vector<float>{0, 1, 1}));
    // And where it has no memory to give, the operation fails and the world goes on.
    submission.name = "y";
    submission.allocate = [](void*, std::int32_t, const std::int64_t*, std::int32_t) -> void* {
      return nullptr;
    };
    submit(engine, submission, ending);
    EXPECT_EQ(ending.code, "internal");
  });
}

TEST_P(Capi, alltoall_says_how_many_rows_came) {
  Cluster cluster(group_of(GetParam()));
  cluster.each([&](Rank rank, Engine& engine) {
    const int ranks = GetParam();
    const std::vector<std::int64_t> splits(static_cast<std::size_t>(ranks), rank + 1);
    const std::int64_t shape[] = {ranks * (rank + 1)};
    std::vector<float> values(static_cast<std::size_t>(shape[0]), static_cast<float>(rank));
    std::vector<std::int32_t> received(static_cast<std::size_t>(ranks));
    FarandoleTensor tensor = in_place(values.data(), shape);
    tensor.out = nullptr;
    tensor.splits = splits.data();
    tensor.members = ranks;
    tensor.received = received.data();
    Ending ending;
    FarandoleSubmission submission = allreduce(&tensor, 1, "x", ending);
    submission.kind = static_cast<std::int32_t>(Kind::Alltoall);
    submit(engine, submission, ending);  // without allocate: the engine's memory, which nobody sees
    EXPECT_EQ(ending.code, "");
    EXPECT_EQ(received,
              ranks == 1 ? std::vector<std::int32_t>{1} : (std::vector<std::int32_t>{1, 2}));
  });
}

TEST_P(Capi, process_sets_have_members_and_places) {
  Cluster cluster(group_of(GetParam()));
  cluster.each([&](Rank rank, Engine& engine) {
    std::int32_t size = 0;
    std::int32_t place = -1;
    ASSERT_EQ(capi_table()->process_set(&engine, 0, &size, &place), 0);
    EXPECT_EQ(size, GetParam());
    EXPECT_EQ(place, rank);
    EXPECT_NE(capi_table()->process_set(&engine, 7, &size, &place), 0);
  });
}

TEST(Capi, a_refused_submission_says_why_and_calls_nobody) {
  Cluster cluster(group_of(3));
  float value = 1.0F;
  const FarandoleTensor tensor = in_place(&value, kOne);
  Ending ending;
  auto submission = allreduce(&tensor, 1, "x", ending);
  submission.op = static_cast<std::int32_t>(ReduceOp::Adasum);
  FarandoleOutcome outcome{};
  ASSERT_NE(capi_table()->submit(&cluster[0], &submission, &outcome), 0);
  EXPECT_STREQ(outcome.code, "unsupported");
  EXPECT_NE(std::string(outcome.message).find("Adasum"), std::string::npos);
  EXPECT_EQ(ending.calls, 0);
}

TEST(Capi, a_lost_rank_comes_as_a_code) {
  Cluster cluster(group_of(2));
  float value = 1.0F;
  const FarandoleTensor tensor = in_place(&value, kOne);
  Ending ending;
  const auto submission = allreduce(&tensor, 1, "x", ending);
  FarandoleOutcome outcome{};
  ASSERT_EQ(capi_table()->submit(&cluster[0], &submission, &outcome), 0);
  cluster.cut(1);
  ending.calls.wait(0);
  EXPECT_EQ(ending.code, "peer_lost");
}

}  // namespace
}  // namespace farandole::testing

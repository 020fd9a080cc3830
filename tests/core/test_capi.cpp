/// The table of C functions that framework glue is bound to.

#include <gtest/gtest.h>

#include <atomic>

#include "bindings/capi.h"
#include "cluster.h"

namespace rueda::testing {
namespace {

struct Ending {
  std::atomic<int> calls{0};
  std::string code;
  std::string message;
};

void done(void* context, const RuedaOutcome* outcome) {
  auto* ending = static_cast<Ending*>(context);
  if (outcome->code != nullptr) {
    ending->code = outcome->code;
    ending->message = outcome->message;
  }
  ++ending->calls;
  ending->calls.notify_all();
}

constexpr std::int64_t kOne[] = {1};

/// `shape` has one dimension.
RuedaTensor in_place(float* values, const std::int64_t* shape) {
  return {.dtype = static_cast<std::int32_t>(DType::Float32),
          .dims = 1,
          .shape = shape,
          .in = values,
          .out = values,
          .splits = nullptr,
          .members = 0,
          .received = nullptr};
}

RuedaRequest allreduce(const RuedaTensor* tensors, int count, const char* name, Ending& ending) {
  return {.kind = static_cast<std::int32_t>(Kind::Allreduce),
          .op = static_cast<std::int32_t>(ReduceOp::Sum),
          .name = name,
          .prescale = 1.0,
          .postscale = 1.0,
          .root = -1,
          .process_set = 0,
          .grouped = count > 1,
          .count = count,
          .tensors = tensors,
          .allocate = nullptr,
          .done = done,
          .context = &ending};
}

class Capi : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Capi, ::testing::Values(1, 2));

Groups group_of(int ranks) {
  Groups groups(1);
  for (Rank rank = 0; rank < ranks; ++rank) groups.front().push_back(rank);
  return groups;
}

TEST(CapiNumbers, that_mean_nothing_are_refused_before_they_index_anything) {
  const RuedaApi& api = *capi_table();
  Cluster cluster(group_of(1));
  cluster.each([&](Rank, Engine& engine) {
    float value = 1;
    Ending ending;
    const auto expect_refused = [&](auto&& change, const std::string& what) {
      const std::int64_t negative[] = {-1};
      RuedaTensor tensor = in_place(&value, kOne);
      RuedaRequest request = allreduce(&tensor, 1, "x", ending);
      change(request, tensor);
      if (tensor.shape == nullptr) tensor.shape = negative;
      RuedaOutcome outcome{};
      ASSERT_EQ(api.submit(&engine, &request, &outcome), 1) << what;
      EXPECT_STREQ(outcome.code, "invalid_argument");
      EXPECT_NE(std::string(outcome.message).find(what), std::string::npos) << outcome.message;
    };
    using R = RuedaRequest;
    using T = RuedaTensor;
    expect_refused([](R& r, T&) { r.kind = 10; }, "kind 10");
    expect_refused([](R& r, T&) { r.kind = -1; }, "kind -1");
    expect_refused([](R& r, T&) { r.op = 6; }, "op 6");
    expect_refused([](R& r, T&) { r.count = 0; }, "count of tensors of 0");
    expect_refused([](R&, T& t) { t.dtype = 11; }, "dtype 11");
    expect_refused([](R&, T& t) { t.dtype = -1; }, "dtype -1");
    expect_refused([](R&, T& t) { t.dtype = 256; }, "dtype 256");
    expect_refused([](R&, T& t) { t.dims = -1; }, "dimensions of -1");
    expect_refused([](R&, T& t) { t.dims = 65; }, "dimensions of 65");
    expect_refused([](R&, T& t) { t.shape = nullptr; }, "extent of -1");
    expect_refused([](R& r, T&) { r.done = nullptr; }, "callback");
  });
  EXPECT_EQ(capi_table()->version, kApiVersion);
}

TEST_P(Capi, single_tensors_and_groups_end_in_one_callback) {
  const RuedaApi& api = *capi_table();
  ASSERT_EQ(api.version, kApiVersion);
  ASSERT_EQ(api.bytes, sizeof(RuedaApi));
  Cluster cluster(group_of(GetParam()));
  cluster.each([&](Rank rank, Engine& engine) {
    for (const int count : {1, 3}) {
      std::vector<std::vector<float>> values(3,
                                             std::vector<float>(5, static_cast<float>(rank + 1)));
      const std::int64_t shape[] = {5};
      std::vector<RuedaTensor> tensors;
      for (auto& value : values) {
        tensors.push_back(in_place(value.data(), shape));
      }
      Ending ending;
      const auto request = allreduce(tensors.data(), count, "x", ending);
      RuedaOutcome outcome{};
      ASSERT_EQ(api.submit(&engine, &request, &outcome), 0);
      ending.calls.wait(0);
      EXPECT_EQ(ending.code, "");
      const float want = GetParam() == 1 ? 1.0F : 3.0F;
      for (int i = 0; i < count; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)][4], want);
    }
  });
}

TEST(Capi, a_refused_submission_says_why_and_calls_nobody) {
  Cluster cluster(group_of(3));
  float value = 1.0F;
  const RuedaTensor tensor = in_place(&value, kOne);
  Ending ending;
  auto request = allreduce(&tensor, 1, "x", ending);
  request.op = static_cast<std::int32_t>(ReduceOp::Adasum);
  RuedaOutcome outcome{};
  ASSERT_NE(capi_table()->submit(&cluster[0], &request, &outcome), 0);
  EXPECT_STREQ(outcome.code, "unsupported");
  EXPECT_NE(std::string(outcome.message).find("Adasum"), std::string::npos);
  EXPECT_EQ(ending.calls, 0);
}

TEST(Capi, a_lost_rank_comes_as_a_code) {
  Cluster cluster(group_of(2));
  float value = 1.0F;
  const RuedaTensor tensor = in_place(&value, kOne);
  Ending ending;
  const auto request = allreduce(&tensor, 1, "x", ending);
  RuedaOutcome outcome{};
  ASSERT_EQ(capi_table()->submit(&cluster[0], &request, &outcome), 0);
  cluster.cut(1);
  ending.calls.wait(0);
  EXPECT_EQ(ending.code, "peer_lost");
}

}  // namespace
}  // namespace rueda::testing

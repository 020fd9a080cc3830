/// Adasum on engines as threads, against the plain formula in long double.

#include <gtest/gtest.h>

#include <cmath>

#include "cluster.h"
#include "kernel_reference.h"
#include "random_numbers.h"

namespace farandole::testing {
namespace {

using reference::Bytes;
using reference::with_float;
using Vectors = std::vector<std::vector<long double>>;  // by rank

const std::vector<Groups> kWorlds{
    {{0}},
    {{0, 1}},
    {{0, 1, 2, 3}},
    {{0}, {1}},
    {{0, 2}, {1, 3}},
    {{0, 1, 2}, {3}},
    {{0, 1, 2, 3, 4, 5, 6, 7}},
    {{0, 1, 2}, {3, 4, 5, 6}, {7}},
};

class AdasumWorld : public ::testing::TestWithParam<Groups> {
 protected:
  [[nodiscard]] static int size() {
    std::size_t ranks = 0;
    for (const auto& group : GetParam()) ranks += group.size();
    return static_cast<int>(ranks);
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, AdasumWorld, ::testing::ValuesIn(kWorlds), world_name);

Bytes narrowed(const std::vector<long double>& values, DType dtype) {
  return with_float(dtype, [&]<typename T>() {
    std::vector<T> result;
    for (const long double value : values) {
      if constexpr (sizeof(T) == 2) {
        result.push_back(T::from(static_cast<float>(value)));
      } else {
        result.push_back(static_cast<T>(value));
      }
    }
    return reference::bytes(result);
  });
}

std::vector<long double> widened(const Bytes& bytes, DType dtype) {
  return with_float(dtype, [&]<typename T>() {
    std::vector<long double> result;
    for (const T value : reference::values<T>(bytes)) {
      if constexpr (sizeof(T) == 2) {
        result.push_back(static_cast<long double>(static_cast<float>(value)));
      } else {
        result.push_back(static_cast<long double>(value));
      }
    }
    return result;
  });
}

long double dot(const std::vector<long double>& a, const std::vector<long double>& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<long double> plain_adasum(Vectors vectors) {
  const long double zero = std::ldexp(1.0L, -511);
  for (std::size_t distance = 1; distance < vectors.size(); distance *= 2) {
    Vectors next = vectors;
    for (std::size_t rank = 0; rank < vectors.size(); ++rank) {
      const auto& a = vectors[rank & ~distance];
      const auto& b = vectors[rank | distance];
      const long double product = dot(a, b);
      const long double aa = dot(a, a);
      const long double bb = dot(b, b);
      for (std::size_t i = 0; i < a.size(); ++i) {
        next[rank][i] = (aa < zero ? 1 : 1 - product / (2 * aa)) * a[i] +
                        (bb < zero ? 1 : 1 - product / (2 * bb)) * b[i];
      }
    }
    vectors = std::move(next);
  }
  return vectors.front();
}

long double epsilon(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return 0x1p-10L;
    case DType::BFloat16:
      return 0x1p-7L;
    case DType::Float32:
      return 0x1p-23L;
    default:
      return 0x1p-52L;
  }
}

/// A few roundings' worth, relative to the length of the whole.
void expect_close(const Bytes& got, const std::vector<long double>& want, DType dtype,
                  const std::string& what) {
  const auto values = widened(got, dtype);
  long double error = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(static_cast<double>(values[i]))) << what << " at " << i;
    error += (values[i] - want[i]) * (values[i] - want[i]);
  }
  EXPECT_LE(std::sqrt(error), 16 * epsilon(dtype) * std::sqrt(dot(want, want))) << what;
}

struct Tensor {
  DType dtype;
  std::vector<Bytes> by_rank;
};

Submission adasum_of(Bytes& bytes, DType dtype, const std::string& name, bool waited) {
  Submission submission;
  submission.kind = Kind::Allreduce;
  submission.op = ReduceOp::Adasum;
  submission.name = name;
  submission.mode = waited ? Mode::Awaited : Mode::Asynchronous;
  submission.tensors.push_back(
      {.in = bytes.data(),
       .out = bytes.data(),
       .dtype = dtype,
       .shape = {static_cast<std::int64_t>(bytes.size() / size_of(dtype))}});
  return submission;
}

/// All at once, so that they are fused; or one after another. Checks that all ranks have the same
/// bits, and returns them.
std::vector<Bytes> run(Cluster& cluster, const std::vector<Tensor>& tensors, bool together,
                       double prescale = 1.0, double postscale = 1.0) {
  std::vector<std::vector<Bytes>> results(static_cast<std::size_t>(cluster.size()));
  cluster.each([&](Rank rank, Engine& engine) {
    auto& mine = results[static_cast<std::size_t>(rank)];
    for (const Tensor& tensor : tensors) {
      mine.push_back(tensor.by_rank[static_cast<std::size_t>(rank)]);
    }
    std::vector<Handle> handles;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      Submission submission =
          adasum_of(mine[t], tensors[t].dtype, "t" + std::to_string(t), !together);
      submission.prescale = prescale;
      submission.postscale = postscale;
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      handles.push_back(*handle);
      if (together && t + 1 < tensors.size()) continue;
      if (together) engine.mark_all_waited();
      for (const Handle one : handles) {
        const auto work = finish(engine, one);
        ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      }
      handles.clear();
    }
  });
  for (const auto& other : results) EXPECT_EQ(other, results.front()) << "ranks differ";
  return results.front();
}

Vectors values_of(const Tensor& tensor) {
  Vectors vectors;
  for (const Bytes& bytes : tensor.by_rank) vectors.push_back(widened(bytes, tensor.dtype));
  return vectors;
}

Tensor random_tensor(int ranks, std::size_t count, DType dtype, unsigned seed) {
  Tensor tensor{.dtype = dtype, .by_rank = {}};
  reference::QuickRandom random(seed);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<long double> values(count);
    for (auto& value : values) value = reference::normal_of(random());
    tensor.by_rank.push_back(narrowed(values, dtype));
  }
  return tensor;
}

constexpr std::array kTypes{DType::Float32, DType::Float16, DType::BFloat16, DType::Float64};

TEST_P(AdasumWorld, random_vectors_match_the_formula_alone_and_in_a_batch) {
  Cluster cluster(GetParam());
  for (const DType dtype : kTypes) {
    std::vector<Tensor> tensors;
    for (const std::size_t count : {1, 0, 15, 17, 4096, 4097, 12345, 70001}) {
      tensors.push_back(random_tensor(size(), count, dtype, static_cast<unsigned>(count) + 1));
    }
    const auto batch = run(cluster, tensors, true);
    const auto alone = run(cluster, tensors, false);
    EXPECT_EQ(batch, alone) << "fusion shows";
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      expect_close(batch[t], plain_adasum(values_of(tensors[t])), dtype,
                   std::string(name_of(dtype)) + " " + std::to_string(t));
    }
  }
}

TEST_P(AdasumWorld, orthogonal_vectors_add_up) {
  Cluster cluster(GetParam());
  for (const DType dtype : kTypes) {
    Tensor tensor{.dtype = dtype, .by_rank = {}};
    const std::size_t count = 8 * 1031;
    std::vector<long double> want(count, 0);
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<long double> values(count, 0);
      for (std::size_t i = static_cast<std::size_t>(rank); i < count; i += 8) {
        values[i] = 1 + static_cast<long double>(i % 5) / 4;
        want[i] = values[i];
      }
      tensor.by_rank.push_back(narrowed(values, dtype));
    }
    const auto got = run(cluster, {tensor}, true);
    EXPECT_EQ(widened(got[0], dtype), want);
  }
}

/// Rank r brings a multiple of one direction, from `first` on by factors.
void expect_mean(const Groups& groups, int size, DType dtype, double first, double factor) {
  Cluster cluster(groups);
  Tensor tensor{.dtype = dtype, .by_rank = {}};
  const std::size_t count = 10007;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<long double> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = first * std::pow(static_cast<long double>(factor), rank) *
                  (1 + static_cast<long double>(i % 3)) * (i % 2 == 0 ? 1 : -1);
    }
    tensor.by_rank.push_back(narrowed(values, dtype));
  }
  const Vectors vectors = values_of(tensor);
  std::vector<long double> want(count, 0);
  for (const auto& vector : vectors) {
    for (std::size_t i = 0; i < count; ++i) want[i] += vector[i] / size;
  }
  const auto got = run(cluster, {tensor}, true);
  expect_close(got[0], want, dtype, std::string(name_of(dtype)) + " from " + std::to_string(first));
}

TEST_P(AdasumWorld, parallel_vectors_average) {
  for (const DType dtype : kTypes) expect_mean(GetParam(), size(), dtype, 1.0, 1.75);
}

TEST_P(AdasumWorld, vectors_near_the_smallest_normal_number_average) {
  expect_mean(GetParam(), size(), DType::Float32, 0x1p-126, 2.0);
  expect_mean(GetParam(), size(), DType::BFloat16, 0x1p-126, 2.0);
  expect_mean(GetParam(), size(), DType::Float16, 0x1p-14, 2.0);
  expect_mean(GetParam(), size(), DType::Float64, 0x1p-250, 2.0);
}

TEST_P(AdasumWorld, vectors_from_the_smallest_number_to_the_root_of_the_largest_average) {
  const int steps = std::max(1, size() - 1);
  const auto span = [&](double low, double high) { return std::pow(high / low, 1.0 / steps); };
  expect_mean(GetParam(), size(), DType::Float32, 0x1p-126, span(0x1p-126, 0x1p64));
  expect_mean(GetParam(), size(), DType::BFloat16, 0x1p-126, span(0x1p-126, 0x1p64));
  expect_mean(GetParam(), size(), DType::Float16, 0x1p-14, span(0x1p-14, 0x1p8));
  expect_mean(GetParam(), size(), DType::Float64, 0x1p-250, span(0x1p-250, 0x1p512));
}

TEST_P(AdasumWorld, huge_and_subnormal_float64_give_no_nan) {
  Cluster cluster(GetParam());
  for (const double magnitude : {0x1p-1022, 0x1p-1070, 0x1p512, 0x1p1000}) {
    Tensor tensor = random_tensor(size(), 9001, DType::Float64, 7);
    for (Bytes& bytes : tensor.by_rank) {
      auto values = widened(bytes, DType::Float64);
      for (auto& value : values) value *= magnitude;
      bytes = narrowed(values, DType::Float64);
    }
    const auto got = run(cluster, {tensor}, true);
    for (const long double value : widened(got[0], DType::Float64)) {
      ASSERT_TRUE(std::isfinite(static_cast<double>(value))) << magnitude;
    }
  }
}

TEST_P(AdasumWorld, a_rank_of_zeros_changes_nothing) {
  Cluster cluster(GetParam());
  Tensor tensor = random_tensor(size(), 5000, DType::Float32, 8);
  for (int rank = 1; rank < size(); ++rank) {
    auto& bytes = tensor.by_rank[static_cast<std::size_t>(rank)];
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  }
  EXPECT_EQ(run(cluster, {tensor}, true)[0], tensor.by_rank[0]);
}

TEST_P(AdasumWorld, factors_apply_before_and_after) {
  Cluster cluster(GetParam());
  Tensor tensor = random_tensor(size(), 4099, DType::Float32, 9);
  const auto got = run(cluster, {tensor}, true, 0.5, 8.0);
  for (Bytes& bytes : tensor.by_rank) {
    bytes = reference::scale(bytes, DType::Float32, 0.5);
  }
  const auto plain = run(cluster, {tensor}, true);
  EXPECT_EQ(got[0], reference::scale(plain[0], DType::Float32, 8.0));
}

TEST_P(AdasumWorld, unnamed_and_grouped_tensors) {
  Cluster cluster(GetParam());
  const Tensor tensor = random_tensor(size(), 100, DType::Float32, 10);
  const Bytes want = run(cluster, {tensor}, true)[0];
  cluster.each([&](Rank rank, Engine& engine) {
    Bytes alone = tensor.by_rank[static_cast<std::size_t>(rank)];
    auto handle = engine.submit(adasum_of(alone, DType::Float32, "", true));
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    auto work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error);
    EXPECT_EQ(alone, want);
    Bytes one = tensor.by_rank[static_cast<std::size_t>(rank)];
    Bytes other = one;
    Submission group = adasum_of(one, DType::Float32, "", true);
    group.tensors.push_back(adasum_of(other, DType::Float32, "", true).tensors.front());
    group.grouped = true;
    handle = engine.submit(std::move(group));
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error);
    EXPECT_EQ(one, want);
    EXPECT_EQ(other, want);
  });
}

TEST(AdasumErrors, sum_elsewhere_under_the_same_name_is_a_mismatch) {
  for (const std::string name : {"x", ""}) {
    Cluster cluster({{0, 1}});
    cluster.each([&](Rank rank, Engine& engine) {
      Bytes bytes(64);
      Submission submission = adasum_of(bytes, DType::Float32, name, true);
      if (rank == 0) submission.op = ReduceOp::Sum;
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      const auto work = finish(engine, *handle);
      ASSERT_TRUE(work && work->error);
      EXPECT_EQ(work->error->code, Code::Mismatch);
      EXPECT_NE(work->error->message.find("Mismatched operations: One rank did an ALLREDUCE, but "
                                          "another rank did an ADASUM"),
                std::string::npos)
          << work->error->message;
      EXPECT_EQ(work->error->tensor, name.empty() ? "allreduce.noname.1" : "allreduce.x");
    });
  }
}

TEST(AdasumErrors, integers_and_odd_numbers_of_ranks_are_refused_at_once) {
  Cluster cluster({{0, 1, 2}});
  Bytes bytes(64);
  auto refused = cluster[0].submit(adasum_of(bytes, DType::Int32, "x", false));
  ASSERT_FALSE(static_cast<bool>(refused));
  EXPECT_EQ(refused.error().code, Code::InvalidArgument);
  EXPECT_NE(refused.error().message.find("int32"), std::string::npos);
  refused = cluster[0].submit(adasum_of(bytes, DType::Float32, "x", false));
  ASSERT_FALSE(static_cast<bool>(refused));
  EXPECT_EQ(refused.error().code, Code::Unsupported);
  EXPECT_NE(refused.error().message.find("power of two"), std::string::npos);
}

}  // namespace
}  // namespace farandole::testing

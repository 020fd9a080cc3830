/// Calls in process sets for which a thread stays, compared with plain arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"

namespace farandole::testing {

using Ranks = std::vector<Rank>;

inline bool in(const Ranks& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

inline float sum_of(const Ranks& ranks) {
  return static_cast<float>(std::accumulate(ranks.begin(), ranks.end(), 0));
}

inline EngineOptions with_sets(std::vector<Ranks> sets) {
  EngineOptions options;
  options.negotiator.process_sets = std::move(sets);
  return options;
}

/// Runs to the end on the way that is taken where somebody stays.
inline std::shared_ptr<Work> stay(Engine& engine, Submission submission,
                                  std::optional<Error>& error) {
  auto handle = engine.submit(blocking(std::move(submission)));
  if (!handle) {
    error = std::move(handle).error();
    return nullptr;
  }
  if (*handle == 0) return nullptr;
  auto work = finish(engine, *handle);
  if (!work) {
    error = Error{.message = "no end"};
  } else {
    error = work->error;
  }
  return work;
}

inline std::optional<Error> stay(Engine& engine, Submission submission) {
  std::optional<Error> error;
  stay(engine, std::move(submission), error);
  return error;
}

/// Blocking, or submitted and waited for.
inline void expect_sum(Engine& engine, std::int32_t set, const Ranks& ranks,
                       const std::string& name, std::size_t count, int salt, bool blocks = true) {
  std::vector<float> values(count, static_cast<float>(engine.rank() + salt));
  Submission submission = allreduce_of(values, name);
  submission.process_set = set;
  std::optional<Error> error;
  if (blocks) {
    error = stay(engine, std::move(submission));
  } else {
    submission.mode = Mode::Awaited;
    const auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work);
    error = work->error;
  }
  ASSERT_FALSE(error) << error->what();
  const float want = sum_of(ranks) + static_cast<float>(salt) * static_cast<float>(ranks.size());
  for (const float value : values) {
    ASSERT_EQ(value, want) << name << " of " << count << " in set " << set;
  }
}

inline std::int32_t add(Engine& engine, const Ranks& ranks) {
  const auto handle = engine.submit({.kind = Kind::AddProcessSet, .ranks = ranks});
  EXPECT_TRUE(static_cast<bool>(handle)) << (handle ? "" : handle.error().what());
  if (!handle) return -1;
  const auto work = finish(engine, *handle);
  EXPECT_TRUE(work && !work->error && work->value);
  return work && work->value ? static_cast<std::int32_t>(*work->value) : -1;
}

inline void remove(Engine& engine, std::int32_t set) {
  const auto handle = engine.submit({.kind = Kind::RemoveProcessSet, .root = set});
  ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  const auto work = finish(engine, *handle);
  ASSERT_TRUE(work && !work->error);
}

}  // namespace farandole::testing

/// How tests wait for operations, and how long.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "backends/operation.h"

namespace farandole::testing {

/// Longer than any test takes, also under a sanitizer on a loaded machine.
inline constexpr auto kPatience = std::chrono::seconds(30);

/// Whether a sanitizer watches: then a test that has many cases of one kind takes fewer of them, as
/// each takes ten times as long. All of them run without one.
#if defined(FARANDOLE_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// A look in vain lets others run, and many of them sleep: threads that only yield take the whole
/// of a loaded machine from those that they wait for.
class Rest {
 public:
  void moved() noexcept { looks_ = 0; }
  void in_vain() {
    if (++looks_ < kLooks) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  static constexpr int kLooks = 64;
  int looks_ = 0;
};

/// The operations that somebody else owns, for `drive_all`.
inline std::vector<Operation*> each_of(const std::vector<std::unique_ptr<Operation>>& owned) {
  std::vector<Operation*> operations;
  operations.reserve(owned.size());
  for (const auto& operation : owned) operations.push_back(operation.get());
  return operations;
}

/// Steps all operations until they are done; lets others run while none can go on.
inline Result<void> drive_all(const std::vector<Operation*>& operations) {
  const TimePoint deadline = Clock::now() + kPatience;
  std::vector<bool> done(operations.size());
  Rest rest;
  for (;;) {
    bool all = true;
    bool moved = false;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (done[i]) continue;
      auto step = operations[i]->step();
      if (!step) return std::move(step).error();
      moved |= *step != Step::Blocked;
      done[i] = *step == Step::Done;
      all &= done[i];
    }
    if (all) return {};
    if (moved) {
      rest.moved();
      continue;
    }
    rest.in_vain();
    if (Clock::now() > deadline) return Error{.code = Code::Timeout, .message = "no progress"};
  }
}

inline ::testing::AssertionResult succeeded(const Result<void>& result) {
  if (result) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure() << result.error().what();
  for (const Rank rank : result.error().missing) failure << ", waited for rank " << rank;
  return failure;
}

}  // namespace farandole::testing

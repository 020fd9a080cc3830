/// The thread for code that may block.

#include "engine/execution/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Executor, JobsBeginInTheOrderInWhichTheyWerePosted) {
  std::vector<int> begun;  // by the thread alone, until it has been joined
  Executor executor;
  const auto jobs = executor.jobs();
  for (int i = 0; i < 3; ++i) {
    jobs->post([&begun, i] {
      begun.push_back(i);
      return Step::Done;
    });
  }
  executor.start({});
  for (int i = 3; i < 6; ++i) {
    jobs->post([&begun, i] {
      begun.push_back(i);
      return Step::Done;
    });
  }
  EXPECT_TRUE(executor.stop(seconds(10)));
  EXPECT_EQ(begun, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(Executor, AJobThatWaitsHoldsUpNoOther) {
  std::atomic<bool> other{false};
  std::promise<void> done;
  Executor executor;
  executor.start([&done] { done.set_value(); });
  const auto jobs = executor.jobs();
  jobs->post([&other, jobs] {
    if (!other.load()) return Step::Blocked;
    jobs->completed();
    return Step::Done;
  });
  jobs->post([&other] {
    other.store(true);
    return Step::Done;
  });
  EXPECT_EQ(done.get_future().wait_for(seconds(10)), std::future_status::ready);
  EXPECT_TRUE(executor.stop(seconds(10)));
}

TEST(Executor, StopRunsWhatWasPosted) {
  int looks = 0;
  Executor executor;
  executor.start({});
  executor.jobs()->post([&looks] { return ++looks == 20 ? Step::Done : Step::Blocked; });
  EXPECT_TRUE(executor.stop(seconds(10)));
  EXPECT_EQ(looks, 20);
  EXPECT_TRUE(executor.stop(seconds(10)));  // once is enough
}

TEST(Executor, AStuckJobIsLeftBehindAndTouchesNothingAfterwards) {
  const auto released = std::make_shared<std::promise<void>>();
  const auto left = std::make_shared<std::promise<void>>();
  std::atomic<int> completed{0};
  std::shared_ptr<Blocking> jobs;
  {
    Executor executor;
    jobs = executor.jobs();
    executor.start([&completed] { ++completed; });
    jobs->post([wait = released->get_future().share(), left, jobs] {
      wait.wait();
      jobs->completed();  // the engine that would be told may be gone
      left->set_value();
      return Step::Done;
    });
    EXPECT_FALSE(executor.stop(milliseconds(20)));
  }
  released->set_value();
  EXPECT_EQ(left->get_future().wait_for(seconds(10)), std::future_status::ready);
  EXPECT_EQ(completed.load(), 0);
}

TEST(Executor, JobsThatAreNeverRunAreForgotten) {
  const auto held = std::make_shared<int>(0);
  {
    Executor executor;
    executor.jobs()->post([held, jobs = executor.jobs()] { return Step::Done; });
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace farandole

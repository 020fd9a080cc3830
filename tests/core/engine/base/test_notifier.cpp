/// Callbacks on a thread of their own.

#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <thread>

#include "engine/base/notifier.h"

namespace farandole {
namespace {

TEST(Notifier, callbacks_run_in_order_and_may_post_more) {
  Notifier notifier;
  std::vector<int> order;
  std::latch posted(1);
  notifier.post([&] {
    posted.wait();  // so that the next one is in the queue already
    order.push_back(1);
    notifier.post([&] { order.push_back(3); });
  });
  notifier.post([&] { order.push_back(2); });
  posted.count_down();
  notifier.stop();                             // runs what is left
  notifier.post([&] { order.push_back(4); });  // after the end: at once
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace farandole

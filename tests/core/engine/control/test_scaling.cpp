/// The control plane of a larger job, with the real negotiators: what must not grow with its size.

#include <gtest/gtest.h>

#include <algorithm>

#include "control_plane.h"

namespace farandole::scaling {
namespace {

constexpr int kPerHost = 4;
constexpr int kArity = 32;  // of the tree of leaders

/// Without the time of the processor, so that every run says the same.
Network exact() {
  Network network;
  network.processor = 0.0;
  return network;
}

std::uint64_t busiest(const std::vector<Load>& loads) {
  std::uint64_t most = 0;
  for (const Load& load : loads) most = std::max(most, load.messages());
  return most;
}

std::uint64_t bytes_of_busiest(const std::vector<Load>& loads) {
  std::uint64_t most = 0;
  for (const Load& load : loads) most = std::max(most, load.bytes_in + load.bytes_out);
  return most;
}

TEST(Scaling, a_node_hears_and_sends_one_message_for_each_edge_in_a_step) {
  for (const int hosts : {2, 8, 33, 100}) {
    ControlPlane plane(hosts, kPerHost, exact());
    const auto names = tensor_names(40);
    ASSERT_FALSE(plane.run(names, false).loads.empty());
    for (const bool straggler : {false, true}) {
      const Step step = plane.run(names, straggler);
      ASSERT_FALSE(step.loads.empty()) << hosts << " hosts do not come to an end";
      // Up and down every edge: to the children, and to the parent.
      EXPECT_LE(busiest(step.loads), 2U * (std::min(hosts, kArity + 1) + (hosts > kArity ? 1 : 0)));
      std::uint64_t all = 0;
      for (const Load& load : step.loads) all += load.messages_out;
      EXPECT_EQ(all, 2U * (hosts - 1));
      std::uint64_t local = 0;
      for (const Load& load : step.local) local += load.messages_out;
      EXPECT_EQ(local, 2U * hosts * (kPerHost - 1));
    }
  }
}

TEST(Scaling, bytes_at_the_busiest_node_do_not_grow_beyond_a_full_tree) {
  const auto names = tensor_names(40);
  std::uint64_t bytes = 0;
  for (const int hosts : {64, 256}) {
    ControlPlane plane(hosts, kPerHost, exact());
    ASSERT_FALSE(plane.run(names, false).loads.empty());
    const Step step = plane.run(names, true);
    if (bytes != 0) {
      EXPECT_LE(bytes_of_busiest(step.loads), bytes * 11 / 10);
    }
    bytes = bytes_of_busiest(step.loads);
    // 16 bytes for a report by numbers, and not much more for a dispatch.
    EXPECT_LE(bytes, 32U * 40U * 40U);
  }
}

TEST(Scaling, time_to_the_last_rank_grows_by_levels_of_the_tree) {
  const auto names = tensor_names(1);
  double last = 0.0;
  for (const int hosts : {32, 256}) {
    ControlPlane plane(hosts, kPerHost, exact());
    ASSERT_FALSE(plane.run(names, false).loads.empty());
    const Step step = plane.run(names, true);
    if (last != 0.0) {
      EXPECT_LE(step.last, 4 * last);
    }
    last = step.last;
  }
}

}  // namespace
}  // namespace farandole::scaling

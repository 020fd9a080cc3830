/// Lanes of process sets: when they close, reopen, answer and go.

#include <gtest/gtest.h>

#include "engine/fast_path/lanes.h"

namespace farandole::testing {
namespace {

/// A rank by itself, with lanes of the world and of two more sets.
class LanesOfOne : public ::testing::Test {
 protected:
  LanesOfOne() : peers(0, 1, {{0}}, {"a"}), lanes(peers) {
    EXPECT_TRUE(static_cast<bool>(peers.open()));
    EXPECT_TRUE(lanes.empty());
    nobody_else();
    for (const std::int32_t id : {0, 1, 2}) {
      ProcessSet set;
      set.id = id;
      set.generation = static_cast<std::uint32_t>(id);
      set.members.add(0);
      lanes.open(set, false);
    }
    EXPECT_FALSE(lanes.empty());
  }
  static void nobody_else() FARANDOLE_ASSERTS(progress_lock, engine_lock) {}
  Proposals& of(std::int32_t set) {
    nobody_else();
    return *lanes.find(set)->proposals;
  }

  Peers peers;
  Lanes lanes;
};

TEST_F(LanesOfOne, reopen_until_a_set_has_not_been_wanted_for_long) {
  nobody_else();
  const auto reopens = [&](std::int32_t set) {
    nobody_else();
    lanes.close();
    EXPECT_TRUE(of(set).closed());
    lanes.reopen();
    return !of(set).closed();
  };
  for (int time = 1; time <= 4; ++time) EXPECT_TRUE(reopens(1)) << time;
  EXPECT_FALSE(reopens(1));
  EXPECT_FALSE(reopens(2));
  EXPECT_TRUE(reopens(0)) << "the world is always wanted";
  lanes.find(1)->unused = 0;
  EXPECT_TRUE(reopens(1));
  EXPECT_FALSE(reopens(2));
}

TEST_F(LanesOfOne, tell_whether_any_that_were_asked_could_answer) {
  nobody_else();
  of(1).called(1);
  ASSERT_TRUE(of(2).may_propose());
  of(2).propose({.key = 5, .signature = 7}, 0, 0);
  of(2).called(2);
  EXPECT_TRUE(lanes.asked());
  EXPECT_TRUE(lanes.answer()) << "that of set 1 has answered";
  EXPECT_TRUE(lanes.asked()) << "that of set 2 waits for its own proposal";
  EXPECT_FALSE(lanes.answer());
  of(2).settle();
  EXPECT_TRUE(lanes.answer());
  EXPECT_FALSE(lanes.asked());
}

TEST_F(LanesOfOne, are_gone_with_their_sets) {
  nobody_else();
  lanes.remove(1);
  EXPECT_EQ(lanes.find(1), nullptr);
  EXPECT_NE(lanes.find(2), nullptr);
  EXPECT_EQ(lanes.of_generation(1), nullptr);
}

}  // namespace
}  // namespace farandole::testing

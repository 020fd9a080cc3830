// Copies into memory that others read: which way they take, and that both ways copy.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/peer_copies.h"

namespace farandole {
namespace {

using Way = FasterWay::Way;

/// What two ways cost on a machine, for so many copies; how often the second one was taken.
int run(FasterWay& way, float first, float second, int copies) {
  int taken = 0;
  for (int i = 0; i < copies; ++i) {
    const Way next = way.next();
    way.took(next, next == FasterWay::First ? first : second);
    taken += next == FasterWay::Second ? 1 : 0;
  }
  return taken;
}

TEST(FasterWay, TriesTheOtherOneMoreAndMoreRarely) {
  FasterWay way;
  EXPECT_EQ(run(way, 0.07F, 0.1F, 16), 0) << "two turns";
  EXPECT_EQ(run(way, 0.07F, 0.1F, 1), 1);
  EXPECT_EQ(run(way, 0.07F, 0.1F, 128), 1);
  EXPECT_EQ(run(way, 0.07F, 0.1F, 512), 1);
  EXPECT_EQ(run(way, 0.07F, 0.1F, 2048), 1);
  EXPECT_EQ(run(way, 0.07F, 0.1F, 10 * 8192), 10);
  EXPECT_EQ(way.taken(), FasterWay::First);
}

TEST(FasterWay, TakesTheOtherOneOnlyIfItIsMuchFaster) {
  FasterWay close;
  run(close, 0.25F, 0.1F, 1000);
  EXPECT_EQ(close.taken(), FasterWay::First);
  FasterWay far;
  run(far, 0.4F, 0.1F, 17);
  EXPECT_EQ(far.taken(), FasterWay::Second);
  EXPECT_EQ(run(far, 0.4F, 0.1F, 1280), 1270);
}

TEST(FasterWay, MemoryThatIsTouchedForTheFirstTimeIsNoSlowWay) {
  FasterWay way;
  run(way, 0.5F, 0.5F, 8);
  EXPECT_LE(run(way, 0.07F, 0.1F, 1000), 4);
}

TEST(FasterWay, FollowsAMachineThatChanges) {
  FasterWay way;
  run(way, 0.07F, 0.1F, 300);
  run(way, 0.4F, 0.1F, 16);
  EXPECT_EQ(way.taken(), FasterWay::Second) << "after a turn of slow copies";
  run(way, 0.07F, 0.1F, 130);
  EXPECT_EQ(way.taken(), FasterWay::First) << "at the next trial";
}

TEST(FasterWay, IsTriedAtOnceWhenTheUsualOneBecomesSlow) {
  FasterWay way;
  run(way, 0.25F, 0.3F, 100000);  // the other one was slow, too
  run(way, 0.4F, 0.1F, 20);
  EXPECT_EQ(way.taken(), FasterWay::Second);
}

TEST(FasterWay, ALoneCopyThatPaysForColdLinesBringsTheUsualOneBack) {
  FasterWay way;
  run(way, 0.4F, 0.07F, 100);
  ASSERT_EQ(way.taken(), FasterWay::Second);
  run(way, 0.15F, 0.075F, 130);
  EXPECT_EQ(way.taken(), FasterWay::First);
}

TEST(FasterWay, AClockThatStandsStillDecidesNothing) {
  FasterWay way;
  EXPECT_EQ(run(way, 0.0F, 0.0F, 1000), 0);
  run(way, 0.4F, 0.1F, 40);
  EXPECT_EQ(way.taken(), FasterWay::Second);
}

TEST(FasterWay, OneCopyThatWasInterruptedChangesNothing) {
  FasterWay way;
  run(way, 0.07F, 0.1F, 10);
  run(way, 100.0F, 0.1F, 1);
  EXPECT_EQ(way.taken(), FasterWay::First);
  run(way, 0.07F, 0.1F, 20);
  run(way, 100.0F, 0.1F, 1);
  EXPECT_EQ(way.taken(), FasterWay::First);
}

TEST(PeerCopies, CopyWhateverTheWay) {
  for (const std::size_t bytes : {0UL, 1UL, 63UL, 4096UL, 32768UL, 40961UL, 262144UL, 300007UL}) {
    for (const std::size_t shift : {0UL, 1UL, 32UL}) {
      PeerCopies copies;
      std::vector<std::uint8_t> in(bytes);
      for (std::size_t i = 0; i < bytes; ++i) in[i] = static_cast<std::uint8_t>(i * 7 + 1);
      std::vector<std::uint8_t> expected(shift + bytes + 64, 9);
      std::copy(in.begin(), in.end(), expected.begin() + static_cast<std::ptrdiff_t>(shift));
      for (int round = 0; round < 17; ++round) {  // the last one goes the other way, if it is timed
        std::vector<std::uint8_t> out(expected.size(), 9);
        copies.copy(reinterpret_cast<std::byte*>(out.data()) + shift,
                    reinterpret_cast<const std::byte*>(in.data()), bytes);
        ASSERT_TRUE(out == expected) << bytes << " bytes, round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace farandole

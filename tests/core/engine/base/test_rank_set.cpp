/// The set of ranks beside std::set, in worlds of more ranks than one word has bits.

#include "engine/base/rank_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>

namespace farandole {
namespace {

using Reference = std::set<Rank>;

/// Both forms of one set.
struct Both {
  RankSet set;
  Reference reference;

  void add(Rank rank) {
    set.add(rank);
    reference.insert(rank);
  }
  void remove(Rank rank) {
    set.remove(rank);
    reference.erase(rank);
  }
  void expect_equal(int most) const {
    ASSERT_EQ(set.to_vector(), std::vector<Rank>(reference.begin(), reference.end()));
    ASSERT_EQ(set.count(), static_cast<int>(reference.size()));
    ASSERT_EQ(set.empty(), reference.empty());
    ASSERT_EQ(set.lowest(), reference.empty() ? -1 : *reference.begin());
    for (Rank rank = 0; rank < most; ++rank) {
      ASSERT_EQ(set.contains(rank), reference.contains(rank)) << rank;
    }
  }
};

/// Some ranks below `most`, none of them or all of them now and then.
Both any(std::mt19937& random, int most) {
  Both both;
  const auto share = random() % 5;
  for (Rank rank = 0; rank < most; ++rank) {
    if (random() % 4 < share) both.add(rank);
  }
  return both;
}

TEST(RankSet, does_what_a_set_does_at_every_border_of_words) {
  std::mt19937 random(7);
  // The two sets of a pair have different numbers of words, too.
  for (const auto& [one, other] : {std::pair(3, 3),
                                   {63, 64},
                                   {64, 65},
                                   {65, 64},
                                   {128, 129},
                                   {129, 128},
                                   {200, 40},
                                   {40, 200}}) {
    const int most = std::max(one, other) + 70;
    for (int round = 0; round < 40; ++round) {
      const Both a = any(random, one);
      const Both b = any(random, other);
      a.expect_equal(most);

      Both sum = a;
      sum.set.add(b.set);
      sum.reference.insert(b.reference.begin(), b.reference.end());
      sum.expect_equal(most);

      Both rest = a;
      rest.set.remove(b.set);
      for (const Rank rank : b.reference) rest.reference.erase(rank);
      rest.expect_equal(most);

      Both common{.set = a.set.common(b.set), .reference = {}};
      std::ranges::set_intersection(a.reference, b.reference,
                                    std::inserter(common.reference, common.reference.end()));
      common.expect_equal(most);

      ASSERT_EQ(a.set.overlaps(b.set), !common.reference.empty());
      ASSERT_EQ(a.set.covers(b.set), std::ranges::includes(a.reference, b.reference));
      ASSERT_EQ(a.set.equals(b.set), a.reference == b.reference);
      ASSERT_TRUE(sum.set.covers(a.set) && sum.set.covers(b.set));
      ASSERT_FALSE(rest.set.overlaps(b.set));
    }
  }
}

TEST(RankSet, single_ranks_come_and_go) {
  std::mt19937 random(8);
  Both both;
  for (int round = 0; round < 2000; ++round) {
    const auto rank = static_cast<Rank>(random() % 200);
    if (random() % 2 == 0)
      both.add(rank);
    else
      both.remove(rank);  // whether it is there or not
    if (round % 50 == 0) both.expect_equal(300);
  }
  both.expect_equal(300);
  RankSet few = RankSet::of(2);
  few.remove(150);  // beyond all that it has room for
  EXPECT_TRUE(few.equals(RankSet::of(2)));
  both.set.clear();
  both.reference.clear();
  both.expect_equal(300);
}

TEST(RankSet, sets_of_equal_members_are_equal_whatever_they_held_before) {
  RankSet once_large = RankSet::of(5);
  once_large.add(130);
  once_large.remove(130);
  EXPECT_TRUE(once_large.equals(RankSet::of(5)));
  EXPECT_TRUE(RankSet::of(5).equals(once_large));
  EXPECT_TRUE(RankSet::of(5).covers(once_large));
  EXPECT_FALSE(once_large.overlaps(RankSet::of(130)));
  EXPECT_EQ(RankSet::all(65).to_vector().back(), 64);
  EXPECT_EQ(RankSet::all(64).count(), 64);
}

}  // namespace
}  // namespace farandole

/// Signs of life and the first cause, with time as an argument.

#include "engine/failure/heartbeat.h"

#include <gtest/gtest.h>

#include "engine/failure/cause.h"

namespace farandole {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint(hours(1));

/// Looks whenever a look is due, until `end`; `alive`: peers that beat just before each look.
struct Watch {
  explicit Watch(std::size_t peers, HeartbeatOptions options = {.limit = seconds(10)})
      : heartbeat(options, peers, kStart) {}

  void run_until(TimePoint end, const std::vector<std::size_t>& alive) {
    while (heartbeat.next() < end) look(heartbeat.next(), alive);
    now = end;
  }
  void look(TimePoint at, const std::vector<std::size_t>& alive) {
    now = at;
    for (const std::size_t peer : alive) heartbeat.heard(peer, at);
    const auto report = heartbeat.look(at, {});
    ++looks;
    beats += report.beat ? 1 : 0;
    for (const std::size_t peer : report.suspected) suspected.emplace_back(peer, at);
    for (const std::size_t peer : report.returned) returned.push_back(peer);
    if (report.lost && !lost) lost = {report.lost->peer, at};
    if (report.pause > Duration::zero()) pause = report.pause;
  }

  Heartbeat heartbeat;
  TimePoint now = kStart;
  int looks = 0;
  int beats = 0;
  std::vector<std::pair<std::size_t, TimePoint>> suspected;
  std::vector<std::size_t> returned;
  std::optional<std::pair<std::size_t, TimePoint>> lost;
  Duration pause{};
};

TEST(Heartbeat, a_quiet_world_looks_and_beats_once_a_second) {
  Watch watch(3);
  watch.run_until(kStart + seconds(3600), {0, 1, 2});
  EXPECT_EQ(watch.beats, 3600);
  EXPECT_EQ(watch.looks, 3600);
  EXPECT_TRUE(watch.suspected.empty());
  EXPECT_FALSE(watch.lost);
}

TEST(Heartbeat, a_silent_peer_is_suspected_and_then_lost_to_the_moment) {
  Watch watch(3);
  watch.run_until(kStart + milliseconds(5500), {0, 1, 2});
  const TimePoint last = kStart + seconds(5);  // the last look that heard peer 1
  watch.run_until(kStart + seconds(30), {0, 2});
  ASSERT_EQ(watch.suspected.size(), 1U);
  EXPECT_EQ(watch.suspected[0], std::make_pair(std::size_t{1}, last + seconds(3)));
  ASSERT_TRUE(watch.lost);
  EXPECT_EQ(*watch.lost, std::make_pair(std::size_t{1}, last + seconds(10)));
}

TEST(Heartbeat, who_comes_back_in_time_is_not_lost) {
  Watch watch(2);
  watch.run_until(kStart + seconds(9), {1});
  watch.run_until(kStart + seconds(60), {0, 1});
  EXPECT_EQ(watch.suspected.size(), 1U);
  EXPECT_EQ(watch.returned, std::vector<std::size_t>{0});
  EXPECT_FALSE(watch.lost);
}

TEST(Heartbeat, of_several_the_one_that_was_heard_first_is_lost) {
  Watch watch(3);
  watch.heartbeat.heard(0, kStart + milliseconds(300));
  watch.heartbeat.heard(1, kStart + milliseconds(200));
  watch.heartbeat.heard(2, kStart + milliseconds(400));
  watch.run_until(kStart + seconds(11), {});
  ASSERT_TRUE(watch.lost);
  EXPECT_EQ(watch.lost->first, 1U);
  EXPECT_EQ(watch.heartbeat.silent(), 3U);
}

TEST(Heartbeat, of_several_found_at_once_the_one_that_was_heard_first_is_lost) {
  for (const std::size_t first : {0U, 1U, 2U}) {
    Heartbeat heartbeat({}, 3, kStart);
    for (const std::size_t peer : {0U, 1U, 2U}) {
      heartbeat.heard(peer, kStart + milliseconds(peer == first ? 100 : 300 + 50 * peer));
    }
    const auto report = heartbeat.look(kStart + seconds(20), kStart + seconds(19));
    ASSERT_TRUE(report.lost);
    EXPECT_EQ(report.lost->peer, first);
    EXPECT_EQ(report.lost->silence, milliseconds(19'900));
  }
}

TEST(Heartbeat, a_rank_that_was_stopped_for_an_hour_reports_nobody) {
  Watch watch(2);
  watch.run_until(kStart + seconds(5), {0, 1});
  watch.look(kStart + hours(1), {});  // stopped in between; nobody has been read yet
  EXPECT_FALSE(watch.lost);
  EXPECT_TRUE(watch.suspected.empty());
  EXPECT_GT(watch.pause, seconds(3500));
  watch.run_until(kStart + hours(1) + seconds(20), {0, 1});
  EXPECT_FALSE(watch.lost);
  EXPECT_TRUE(watch.suspected.empty());
}

TEST(Heartbeat, who_was_stopped_finds_a_dead_peer_all_the_same) {
  Watch watch(2);
  watch.run_until(kStart + seconds(5), {0, 1});
  watch.look(kStart + hours(1), {});
  watch.run_until(kStart + hours(1) + seconds(20), {1});
  ASSERT_TRUE(watch.lost);
  EXPECT_EQ(watch.lost->first, 0U);
  EXPECT_LE(watch.lost->second, kStart + hours(1) + seconds(10));
}

TEST(Heartbeat, whoever_is_scheduled_late_each_time_finds_a_dead_peer_all_the_same) {
  Watch watch(1);
  for (int i = 1; i <= 20; ++i) watch.look(kStart + i * seconds(5), {});
  ASSERT_TRUE(watch.lost);
}

TEST(Heartbeat, nobody_was_stopped_if_only_nobody_looked) {
  Heartbeat heartbeat({}, 1, kStart);
  const auto report = heartbeat.look(kStart + seconds(60), kStart + seconds(59));
  EXPECT_EQ(report.pause, Duration::zero());
  // So the peer's silence is its own: all of it counts.
  ASSERT_TRUE(report.lost);
  EXPECT_EQ(report.lost->peer, 0U);
  EXPECT_EQ(report.lost->silence, seconds(60));
  EXPECT_EQ(report.suspected, std::vector<std::size_t>{0});
}

TEST(Heartbeat, two_ranks_come_to_beat_at_the_same_moment) {
  Heartbeat heartbeat({.limit = seconds(10)}, 1, kStart);
  (void)heartbeat.look(kStart, {});
  heartbeat.answer(kStart + milliseconds(400));  // the own beat is due at 1000
  EXPECT_EQ(heartbeat.next(), kStart + milliseconds(1000));
  heartbeat.answer(kStart + milliseconds(700));
  EXPECT_EQ(heartbeat.next(), kStart + milliseconds(700));
  EXPECT_TRUE(heartbeat.look(kStart + milliseconds(700), {}).beat);
  EXPECT_EQ(heartbeat.next(), kStart + milliseconds(1700));
}

TEST(Heartbeat, limits_of_three_seconds_leave_room_for_late_beats) {
  Watch watch(1, {.warning = milliseconds(1500), .limit = seconds(3)});
  for (int i = 1; i < 100; ++i) {  // every other beat is lost
    watch.run_until(kStart + i * seconds(2), {});
    watch.look(kStart + i * seconds(2), {0});
  }
  EXPECT_FALSE(watch.lost);
}

// -- the cause_finder

Error about(Rank rank) { return {.code = Code::PeerLost, .message = "lost", .peer = rank}; }

TEST(CauseFinder, what_is_certain_needs_no_waiting_at_the_root) {
  CauseFinder cause_finder;
  EXPECT_TRUE(cause_finder.hear(about(3), Evidence::Certain, false, kStart));
  EXPECT_EQ(cause_finder.deadline(), kStart);
}

TEST(CauseFinder, better_evidence_replaces_worse_and_the_first_of_equals_stays) {
  CauseFinder cause_finder;
  EXPECT_TRUE(cause_finder.hear(about(1), Evidence::Data, false, kStart));
  EXPECT_FALSE(cause_finder.hear(about(2), Evidence::Data, false, kStart + milliseconds(1)));
  EXPECT_EQ(cause_finder.best().error.peer, 1);
  EXPECT_TRUE(cause_finder.hear(about(2), Evidence::Control, false, kStart + milliseconds(2)));
  EXPECT_EQ(cause_finder.best().error.peer, 2);
  EXPECT_FALSE(cause_finder.hear(about(1), Evidence::Data, false, kStart + milliseconds(3)));
  EXPECT_GT(cause_finder.deadline(), kStart + milliseconds(3));
  EXPECT_TRUE(cause_finder.hear(about(4), Evidence::Certain, false, kStart + milliseconds(4)));
  EXPECT_LE(cause_finder.deadline(), kStart + milliseconds(4));
  EXPECT_EQ(cause_finder.best().error.peer, 4);
}

TEST(CauseFinder, who_can_ask_waits_for_the_verdict_but_not_for_ever) {
  CauseFinder cause_finder;
  cause_finder.hear(about(1), Evidence::Certain, true, kStart);
  EXPECT_EQ(cause_finder.deadline(), kStart + milliseconds(200));
  cause_finder.lose_parent();
  EXPECT_EQ(cause_finder.deadline(), kStart);
  cause_finder.close();
  EXPECT_FALSE(cause_finder.open());
}

TEST(CauseFinder, who_is_not_certain_waits_until_a_silent_root_is_noticed) {
  CauseFinder cause_finder(seconds(5));
  cause_finder.hear(about(2), Evidence::Data, true, kStart);
  EXPECT_EQ(cause_finder.deadline(), kStart + milliseconds(5200));
  cause_finder.hear(about(0), Evidence::Certain, false, kStart + milliseconds(250));
  EXPECT_LE(cause_finder.deadline(), kStart + milliseconds(250));
  EXPECT_EQ(cause_finder.best().error.peer, 0);

  CauseFinder certain(seconds(5));
  certain.hear(about(2), Evidence::Certain, true, kStart);
  EXPECT_EQ(certain.deadline(), kStart + milliseconds(200));

  CauseFinder alone(seconds(5));
  alone.hear(about(2), Evidence::Control, true, kStart);
  alone.lose_parent();
  EXPECT_EQ(alone.deadline(), kStart + milliseconds(50));
}

}  // namespace
}  // namespace farandole

/// Recording: start and stop at any moment, alone and in engines that work meanwhile.

#include "engine/timeline/timeline.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "cluster.h"
#include "trace.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Row = std::vector<std::string>;

/// Looks at the file until it contains the text; true if it does within 10 s.
bool appears(const std::string& path, std::string_view text) {
  const auto deadline = Clock::now() + seconds(10);
  while (text_of(path).find(text) == std::string::npos) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

/// An operation of a world of two ranks from the first report to the end.
void record_operation(Timeline& timeline, const std::string& name, std::uint64_t number = 0) {
  const Key key{.name = name, .number = number};
  const RankSet members = RankSet::all(2);
  Track track = 0;
  for (const Rank rank : {1, 0}) {
    const RankSet before = rank == 1 ? RankSet() : RankSet::of(1);
    timeline.reported(track, key, Kind::Allreduce, RankSet::of(rank), before, members,
                      Clock::now());
  }
  if (track == 0) return;
  timeline.negotiated(track, true, Clock::now());
  timeline.started({&track, 1}, Kind::Allreduce, Clock::now());
  const auto signature = std::make_shared<const Signature>();
  timeline.finished({&track, 1}, {&signature, 1}, Clock::now());
}

const Row kOperation{"B NEGOTIATE_ALLREDUCE", "X 1", "X 0",         "E", "B ALLREDUCE",
                     "B GLOO_ALLREDUCE",      "E",   "E float32 []"};

struct TimelineTest : ::testing::Test {
  Folder folder;
  Log log{0, LogLevel::Fatal, true};
  Timeline timeline{0, milliseconds(1), log};
};

TEST_F(TimelineTest, nothing_is_recorded_before_start_and_after_stop) {
  EXPECT_FALSE(timeline.recording());
  record_operation(timeline, "allreduce.before");
  timeline.stop();
  timeline.start(folder / "a", true);
  EXPECT_TRUE(timeline.recording());
  EXPECT_TRUE(timeline.marks_cycles());
  record_operation(timeline, "allreduce.x");
  timeline.stop();
  EXPECT_FALSE(timeline.recording());
  EXPECT_FALSE(timeline.marks_cycles());
  record_operation(timeline, "allreduce.after");
  timeline.stop();
  const auto records = records_of(folder / "a");
  check_form(records);
  EXPECT_EQ(rows_of(records).size(), 1U);
  EXPECT_EQ(row(records, "allreduce.x"), kOperation);
}

TEST_F(TimelineTest, marks_are_a_cycle_apart_but_every_file_has_one) {
  const auto now = Clock::now();
  for (const char* name : {"a", "b"}) {
    timeline.start(folder / name, true);
    timeline.cycle(now);
    timeline.cycle(now + std::chrono::microseconds(999));
    timeline.stop();
    const auto text = text_of(folder / name);
    EXPECT_NE(text.find("CYCLE_START"), std::string::npos) << name;
    EXPECT_EQ(text.find("CYCLE_START"), text.rfind("CYCLE_START")) << name;
  }
}

TEST_F(TimelineTest, other_ranks_write_nothing) {
  Timeline other(1, milliseconds(1), log);
  other.start(folder / "a", true);
  EXPECT_FALSE(other.recording());
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  other.stop();
}

TEST_F(TimelineTest, what_happens_is_on_disk_soon) {
  timeline.start(folder / "a", false);
  EXPECT_EQ(text_of(folder / "a"), "[]");
  record_operation(timeline, "allreduce.x");
  EXPECT_TRUE(appears(folder / "a", "allreduce.x"));
  check_form(records_of(folder / "a"));
}

TEST_F(TimelineTest, a_file_that_was_there_is_replaced_and_rows_are_numbered_anew) {
  std::ofstream(folder / "a") << std::string(5000, 'x');
  for (int round = 0; round < 2; ++round) {
    timeline.start(folder / "a", false);
    record_operation(timeline, round == 0 ? "allreduce.x" : "allreduce.y");
    timeline.stop();
    const auto records = records_of(folder / "a");
    check_form(records);
    EXPECT_EQ(rows_of(records).size(), 1U);
    EXPECT_EQ(rows_of(records).begin()->second, "1");
  }
}

TEST_F(TimelineTest, the_current_file_once_more_changes_nothing) {
  timeline.start(folder / "a", false);
  record_operation(timeline, "allreduce.x");
  timeline.start(folder / "a", true);
  EXPECT_FALSE(timeline.marks_cycles());
  timeline.start(folder / "./a", true);  // by another spelling
  EXPECT_FALSE(timeline.marks_cycles());
  record_operation(timeline, "allreduce.x");
  timeline.stop();
  Row twice = kOperation;
  twice.insert(twice.end(), kOperation.begin(), kOperation.end());
  EXPECT_EQ(row(records_of(folder / "a"), "allreduce.x"), twice);
}

TEST_F(TimelineTest, a_file_that_cannot_be_written_leaves_everything_as_it_is) {
  std::ofstream(folder / "file") << "is no folder";
  timeline.start(folder / "file/a", false);
  EXPECT_FALSE(timeline.recording());
  timeline.start(folder / "a", false);
  timeline.start(folder / "file/a", false);
  EXPECT_TRUE(timeline.recording());
  record_operation(timeline, "allreduce.x");
  timeline.stop();
  EXPECT_EQ(row(records_of(folder / "a"), "allreduce.x"), kOperation);
}

TEST_F(TimelineTest, a_full_disk_ends_the_file_and_nothing_else) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  timeline.start("/dev/full", false);
  record_operation(timeline, "allreduce.x");
  timeline.start(folder / "a", false);
  record_operation(timeline, "allreduce.x");
  timeline.stop();
  EXPECT_EQ(row(records_of(folder / "a"), "allreduce.x"), kOperation);
}

TEST_F(TimelineTest, another_file_takes_over_in_the_middle_of_an_operation) {
  const Key key{.name = "allreduce.x"};
  Track track = 0;
  timeline.start(folder / "a", false);
  timeline.reported(track, key, Kind::Allreduce, RankSet::of(0), {}, RankSet::all(1), Clock::now());
  timeline.negotiated(track, true, Clock::now());
  timeline.started({&track, 1}, Kind::Allreduce, Clock::now());
  timeline.start(folder / "b", false);
  const auto signature = std::make_shared<const Signature>();
  timeline.finished({&track, 1}, {&signature, 1}, Clock::now());
  record_operation(timeline, "allreduce.x");
  timeline.stop();
  check_form(records_of(folder / "a"), false);
  check_form(records_of(folder / "b"));
  EXPECT_EQ(row(records_of(folder / "b"), "allreduce.x"), kOperation);
}

TEST_F(TimelineTest, who_reported_before_the_start_is_there_too) {
  const Key key{.name = "allreduce.x"};
  Track track = 0;
  timeline.start(folder / "a", false);
  timeline.reported(track, key, Kind::Allreduce, RankSet::of(0), RankSet::of(2), RankSet::all(3),
                    Clock::now());
  timeline.reported(track, key, Kind::Allreduce, RankSet::of(1), RankSet::all(3), RankSet::all(3),
                    Clock::now());
  timeline.stop();
  EXPECT_EQ(row(records_of(folder / "a"), "allreduce.x"),
            (Row{"B NEGOTIATE_ALLREDUCE", "X 0", "X 2", "X 1"}));
}

TEST_F(TimelineTest, who_reported_while_the_file_before_was_open_is_in_both) {
  const Key key{.name = "allreduce.x"};
  for (const bool stops : {true, false}) {
    Track track = 0;
    timeline.start(folder / "a", false);
    timeline.reported(track, key, Kind::Allreduce, RankSet::of(1), {}, RankSet::all(2),
                      Clock::now());
    if (stops) timeline.stop();
    timeline.start(folder / "b", false);
    timeline.reported(track, key, Kind::Allreduce, RankSet::of(0), RankSet::of(1), RankSet::all(2),
                      Clock::now());
    timeline.stop();
    EXPECT_EQ(row(records_of(folder / "a"), "allreduce.x"), (Row{"B NEGOTIATE_ALLREDUCE", "X 1"}));
    EXPECT_EQ(row(records_of(folder / "b"), "allreduce.x"),
              (Row{"B NEGOTIATE_ALLREDUCE", "X 0", "X 1"}));
  }
}

TEST_F(TimelineTest, one_name_in_two_process_sets_has_two_rows) {
  timeline.start(folder / "a", false);
  for (const std::int32_t set : {0, 1}) {
    const Key key{.process_set = set, .name = "allreduce.x"};
    Track track = 0;
    timeline.reported(track, key, Kind::Allreduce, RankSet::of(5), {}, RankSet::of(5),
                      Clock::now());
    timeline.negotiated(track, false, Clock::now());
  }
  timeline.stop();
  const auto records = records_of(folder / "a");
  check_form(records);
  std::set<std::string> pids;
  for (const Json& record : records) {
    if (record["ph"] == "X") {
      EXPECT_EQ(record["name"], "0");  // its position in the set
    }
    if (record["ph"] == "B") pids.insert(record["pid"]);
  }
  EXPECT_EQ(pids.size(), 2U);
}

TEST_F(TimelineTest, cycles_are_marked_at_most_once_per_cycle_time) {
  timeline.start(folder / "a", true);
  const auto begin = Clock::now();
  for (const int micros : {0, 400, 999, 1000, 1500, 2000, 9000, 9001}) {
    timeline.cycle(begin + std::chrono::microseconds(micros));
  }
  timeline.stop();
  const auto records = records_of(folder / "a");
  check_form(records);
  EXPECT_EQ(records.size(), 2U + 4U);
}

TEST_F(TimelineTest, four_files_while_threads_record) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; !stop.load(); ++i) {
        // Half of the names come once.
        record_operation(timeline, i % 2 != 0 ? "" : "allreduce.t" + std::to_string(thread),
                         1000 * i + static_cast<std::uint64_t>(thread));
        if (i % 3 == 0) timeline.cycle(Clock::now());
        if (i % 16 == 0) std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  for (int file = 0; file < 4; ++file) {
    const std::string path = folder / std::to_string(file);
    timeline.start(path, file % 2 == 0);
    ASSERT_TRUE(appears(path, "\"allreduce.t0\""));
    ASSERT_TRUE(appears(path, "\"allreduce.t1\""));
    if (file % 2 == 0) {
      ASSERT_TRUE(appears(path, "CYCLE_START"));
    }
    if (file != 1) timeline.stop();  // the third follows the second without a gap
  }
  stop = true;
  threads.clear();
  for (int file = 0; file < 4; ++file) {
    const auto records = records_of(folder / std::to_string(file));
    check_form(records, false);
  }
}

TEST_F(TimelineTest, a_killed_process_leaves_json) {
  for (int round = 0; round < 8; ++round) {
    const std::string path = folder / std::to_string(round);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Timeline own(0, milliseconds(1), log);
      own.start(path, true);
      for (;;) {
        for (int i = 0; i < 10; ++i) record_operation(own, "allreduce." + std::to_string(i));
        std::this_thread::sleep_for(milliseconds(2));
      }
    }
    const bool came = appears(path, "allreduce.9");
    std::this_thread::sleep_for(std::chrono::microseconds(1000 * round + 137 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    ASSERT_TRUE(came);
    check_form(records_left(path), false);
  }
}

// --- in engines
// -----------------------------------------------------------------------------------

const std::vector<Groups> kWorlds{
    {{0}}, {{0, 1}}, {{0, 1, 2, 3}}, {{0}, {1}}, {{0}, {1}, {2}}, {{0, 1}, {2, 3}},
};

class TimelineWorld : public ::testing::TestWithParam<Groups> {
 protected:
  Folder folder;
};

INSTANTIATE_TEST_SUITE_P(Worlds, TimelineWorld, ::testing::ValuesIn(kWorlds), world_name);

std::shared_ptr<Work> run(Engine& engine, Submission submission) {
  auto handle = engine.submit(std::move(submission));
  EXPECT_TRUE(static_cast<bool>(handle));
  return handle ? finish(engine, *handle) : nullptr;
}

Submission allgather_of(std::vector<float>& rows) {
  Submission submission;
  submission.kind = Kind::Allgather;
  submission.name = "g";
  submission.mode = Mode::Awaited;
  submission.tensors.push_back(tensor_of(rows));
  submission.tensors.front().out = nullptr;
  return submission;
}

TEST_P(TimelineWorld, operations_are_drawn_with_a_tick_for_every_rank) {
  EngineOptions options;
  options.timeline = folder / "t";
  {
    Cluster cluster(GetParam(), options);
    cluster.each([&](Rank rank, Engine& engine) {
      for (int round = 0; round < 3; ++round) {
        std::vector<float> values(3, 1.0F);
        ASSERT_FALSE(run(engine, allreduce_of(values, "x"))->error);
      }
      std::vector<float> rows(static_cast<std::size_t>(rank + 1));
      ASSERT_FALSE(run(engine, allgather_of(rows))->error);
      Submission barrier;
      barrier.kind = Kind::Barrier;
      barrier.mode = Mode::Awaited;
      ASSERT_FALSE(run(engine, std::move(barrier))->error);
    });
  }
  const auto records = records_of(folder / "t");
  check_form(records);
  int size = 0;
  for (const auto& group : GetParam()) size += static_cast<int>(group.size());
  // Ticks come in any order.
  const auto checked = [&](Row drawn) {
    std::vector<std::string> ticks;
    std::erase_if(drawn, [&](const std::string& text) {
      if (!text.starts_with("X ")) return false;
      ticks.push_back(text);
      return true;
    });
    std::ranges::sort(ticks);
    for (Rank rank = 0; rank < size; ++rank) {
      EXPECT_EQ(std::ranges::count(ticks, "X " + std::to_string(rank)),
                static_cast<long>(ticks.size()) / size);
    }
    EXPECT_EQ(ticks.size() % static_cast<std::size_t>(size), 0U);
    return drawn;
  };
  Row three;
  for (int round = 0; round < 3; ++round) {
    for (const char* text :
         {"B NEGOTIATE_ALLREDUCE", "E", "B ALLREDUCE", "B GLOO_ALLREDUCE", "E", "E float32 [3]"}) {
      three.emplace_back(text);
    }
  }
  EXPECT_EQ(checked(row(records, "allreduce.x")), three);
  EXPECT_EQ(checked(row(records, "allgather.g")),
            (Row{"B NEGOTIATE_ALLGATHER", "E", "B ALLGATHER", "B GLOO_ALLGATHER",
                 "B ALLOCATE_OUTPUT", "E", "E", "E float32 [1]"}));
  EXPECT_EQ(checked(row(records, "barrier.noname")), (Row{"B NEGOTIATE_BARRIER", "E"}));
}

TEST_P(TimelineWorld, a_disagreement_is_an_error_and_so_is_what_the_end_cuts_off) {
  if (GetParam() == Groups{{0}}) return;  // nobody to disagree with
  EngineOptions options;
  options.timeline = folder / "t";
  std::vector<float> left(1);
  {
    Cluster cluster(GetParam(), options);
    cluster.each([&](Rank rank, Engine& engine) {
      std::vector<float> values(static_cast<std::size_t>(rank + 1));
      ASSERT_TRUE(run(engine, allreduce_of(values, "x"))->error);
      if (rank == 0) {
        ASSERT_TRUE(static_cast<bool>(engine.submit(allreduce_of(left, "left"))));
      }
    });
  }
  const auto records = records_of(folder / "t");
  check_form(records);
  Row drawn = row(records, "allreduce.x");
  std::erase_if(drawn, [](const std::string& text) { return text.starts_with("X "); });
  EXPECT_EQ(drawn, (Row{"B NEGOTIATE_ALLREDUCE", "E", "B ERROR", "E"}));
  EXPECT_EQ(row(records, "allreduce.left"),
            (Row{"B NEGOTIATE_ALLREDUCE", "X 0", "E", "B ERROR", "E"}));
}

TEST_P(TimelineWorld, files_follow_each_other_while_the_world_works) {
  EngineOptions options;
  Cluster cluster(GetParam(), options);
  std::atomic<bool> stop{false};
  std::jthread control([&] {
    for (int file = 0; file < 4; ++file) {
      const std::string path = folder / std::to_string(file);
      cluster[0].start_timeline(path, file % 2 == 1);
      EXPECT_TRUE(appears(path, "\"ALLREDUCE\""));
      if (file % 2 == 1) {
        EXPECT_TRUE(appears(path, "CYCLE_START"));
      }
      for (int look = 0; look < 8; ++look) records_meanwhile(path);
      cluster[0].stop_timeline();
      const auto records = records_of(path);
      check_form(records, false);
      EXPECT_EQ(text_of(path).find("CYCLE_START") != std::string::npos, file % 2 == 1);
    }
    stop = true;
  });
  cluster.each([&](Rank rank, Engine& engine) {
    // Rank 0 says when it is over; the others hear it in the sum.
    for (int round = 0;; ++round) {
      std::vector<float> values(2, rank == 0 && stop.load() ? 1.0F : 0.0F);
      const auto work = run(engine, allreduce_of(values, round % 2 == 0 ? "x" : ""));
      ASSERT_TRUE(work && !work->error);
      if (values[0] != 0.0F) return;
      if (round % 2 == 0) std::this_thread::sleep_for(milliseconds(5));
    }
  });
}

}  // namespace
}  // namespace farandole::testing

/// Events become records: exact text, rows, what may not overlap.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "engine/timeline/trace_file.h"
#include "text.h"
#include "trace.h"

namespace farandole::testing {
namespace {

using Mark = TimelineEvent::Mark;
using Span = TimelineEvent::Span;
using std::chrono::microseconds;
using Row = std::vector<std::string>;

struct TraceFileTest : ::testing::Test {
  Folder folder;
  std::string path = folder / "trace.json";
  TimePoint origin = Clock::now();
  Log log{0, LogLevel::Fatal, true};
  TrackNames names;
  std::unique_ptr<TraceFile> file = open();
  std::int64_t micros = 0;  // of the last event

  std::unique_ptr<TraceFile> open() {
    names.add(1, "allreduce.a", false);
    auto opened = TraceFile::open(path, origin, 1234567, log);
    EXPECT_TRUE(static_cast<bool>(opened));
    (*opened)->begin();
    return std::move(*opened);
  }
  void take(TimelineEvent event) {
    event.time = origin + microseconds(++micros);
    file->take({&event, 1}, names);
  }
  void negotiation_begins(Track track) {
    take({.track = track, .mark = Mark::Begin, .span = Span::Negotiation});
  }
  void tick(Track track, std::int32_t member) {
    take({.track = track, .member = member, .mark = Mark::Tick});
  }
  void negotiation_ends(Track track) { take({.track = track, .mark = Mark::End}); }
  void operation_begins(Track track) {
    take({.track = track, .mark = Mark::Begin, .span = Span::Operation});
    take({.track = track, .mark = Mark::Begin, .span = Span::Transfer});
  }
  void operation_ends(Track track) {
    auto signature = std::make_shared<Signature>();
    signature->shape = {17, 3};
    take({.track = track, .mark = Mark::End, .span = Span::Transfer});
    take({.signature = signature,
          .track = track,
          .mark = Mark::End,
          .span = Span::Operation,
          .last = true});
  }
};

TEST_F(TraceFileTest, nothing_is_written_through_a_link_or_into_what_is_no_file) {
  const std::string victim = folder / "victim";
  std::ofstream(victim) << "precious";
  const std::string symbolic = folder / "symbolic";
  const std::string hard = folder / "hard";
  const std::string pipe = folder / "pipe";
  const std::string nowhere = folder / "nowhere";
  ASSERT_EQ(::symlink(victim.c_str(), symbolic.c_str()), 0);
  ASSERT_EQ(::symlink((folder / "made").c_str(), nowhere.c_str()), 0);
  ASSERT_EQ(::link(victim.c_str(), hard.c_str()), 0);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& each : {symbolic, hard, pipe, nowhere, std::string("/dev/null")}) {
    EXPECT_FALSE(static_cast<bool>(TraceFile::open(each, origin, 0, log))) << each;
  }
  EXPECT_EQ(text_of(victim), "precious");
  EXPECT_NE(::access((folder / "made").c_str(), F_OK), 0);
  // A file of this user is written over, as ever.
  const std::string old = folder / "old";
  std::ofstream(old) << "of the last run";
  auto again = TraceFile::open(old, origin, 0, log);
  ASSERT_TRUE(static_cast<bool>(again));
  (*again)->begin();
  EXPECT_EQ(text_of(old), "[]");
}

TEST_F(TraceFileTest, folders_that_are_missing_are_made) {
  const std::string deep = folder / "logs/of today//trace.json";
  auto opened = TraceFile::open(deep, origin, 0, log);
  ASSERT_TRUE(static_cast<bool>(opened)) << opened.error().what();
  (*opened)->begin();
  EXPECT_EQ(text_of(deep), "[]");
  auto below_a_file = TraceFile::open(path + "/trace.json", origin, 0, log);
  ASSERT_FALSE(static_cast<bool>(below_a_file));
  EXPECT_NE(below_a_file.error().what().find(path), std::string::npos);
}

TEST_F(TraceFileTest, a_file_without_events_is_an_empty_array) { EXPECT_EQ(text_of(path), "[]"); }

TEST_F(TraceFileTest, the_life_of_an_operation_is_written_to_the_letter) {
  negotiation_begins(1);
  tick(1, 2);
  negotiation_ends(1);
  take({.mark = Mark::Cycle});
  operation_begins(1);
  operation_ends(1);
  EXPECT_EQ(text_of(path),
            "[\n"
            "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": "
            "{\"start_time_since_epoch_in_micros\": 1234567}},\n"
            "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"args\": "
            "{\"sort_index\": 0}},\n"
            "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"args\": "
            "{\"name\": \"allreduce.a\"}},\n"
            "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 1, \"args\": "
            "{\"sort_index\": 1}},\n"
            "{\"ph\": \"B\", \"name\": \"NEGOTIATE_ALLREDUCE\", \"ts\": 1, \"pid\": 1},\n"
            "{\"ph\": \"X\", \"name\": \"2\", \"ts\": 2, \"pid\": 1, \"dur\": 0},\n"
            "{\"ph\": \"E\", \"ts\": 3, \"pid\": 1},\n"
            "{\"ph\": \"i\", \"name\": \"CYCLE_START\", \"ts\": 4, \"s\": \"g\"},\n"
            "{\"ph\": \"B\", \"name\": \"ALLREDUCE\", \"ts\": 5, \"pid\": 1},\n"
            "{\"ph\": \"B\", \"name\": \"GLOO_ALLREDUCE\", \"ts\": 6, \"pid\": 1},\n"
            "{\"ph\": \"E\", \"ts\": 7, \"pid\": 1},\n"
            "{\"ph\": \"E\", \"ts\": 8, \"pid\": 1, \"args\": "
            "{\"dtype\": \"float32\", \"shape\": \"[17, 3]\"}}\n"
            "]");
}

TEST_F(TraceFileTest, it_is_json_after_every_event) {
  for (int round = 0; round < 3; ++round) {
    negotiation_begins(1);
    records_of(path);
    tick(1, 0);
    records_of(path);
    negotiation_ends(1);
    records_of(path);
    operation_begins(1);
    records_of(path);
    operation_ends(1);
    check_form(records_of(path));
  }
}

TEST_F(TraceFileTest, a_batch_larger_than_one_write_is_whole) {
  std::vector<TimelineEvent> events;
  for (int i = 0; i < 20000; ++i) {
    events.push_back({.time = origin, .track = 1, .mark = Mark::Begin});
    events.push_back({.time = origin, .track = 1, .mark = Mark::End, .last = true});
  }
  file->take(events, names);
  const auto records = records_of(path);
  EXPECT_EQ(records.size(), 40004U);
  check_form(records);
  // A process may be killed between two pages of a write: no line may be on both.
  const std::string text = text_of(path);
  for (std::size_t page = 4096; page < text.size(); page += 4096) {
    ASSERT_EQ(text[page], '\n') << text.substr(page - 80, 160);
  }
}

TEST_F(TraceFileTest, a_refused_operation_is_an_error) {
  negotiation_begins(1);
  take({.track = 1, .mark = Mark::Fail, .last = true});
  negotiation_begins(1);
  negotiation_ends(1);
  EXPECT_EQ(row(records_of(path), "allreduce.a"),
            (Row{"B NEGOTIATE_ALLREDUCE", "E", "B ERROR", "E", "B NEGOTIATE_ALLREDUCE", "E"}));
}

TEST_F(TraceFileTest, everything_that_is_open_fails_when_the_world_ends) {
  names.add(2, "allreduce.b", false);
  names.add(3, "allreduce.c", false);
  names.add(4, "allreduce.d", false);
  for (const Track track : {1U, 2U, 3U, 4U}) negotiation_begins(track);
  for (const Track track : {2U, 3U, 4U}) negotiation_ends(track);
  operation_begins(3);
  operation_begins(4);
  operation_ends(4);
  take({.mark = Mark::Abort});
  const auto records = records_of(path);
  check_form(records);
  EXPECT_EQ(row(records, "allreduce.a"), (Row{"B NEGOTIATE_ALLREDUCE", "E", "B ERROR", "E"}));
  EXPECT_EQ(row(records, "allreduce.b"), (Row{"B NEGOTIATE_ALLREDUCE", "E", "B ERROR", "E"}));
  EXPECT_EQ(row(records, "allreduce.c"), (Row{"B NEGOTIATE_ALLREDUCE", "E", "B ALLREDUCE",
                                              "B GLOO_ALLREDUCE", "E", "E", "B ERROR", "E"}));
  EXPECT_EQ(row(records, "allreduce.d").back(), "E float32 [17, 3]");
}

TEST_F(TraceFileTest, the_next_use_of_a_name_is_drawn_behind_the_one_that_runs) {
  negotiation_begins(1);
  negotiation_ends(1);
  negotiation_begins(1);  // others are through already
  tick(1, 1);
  operation_begins(1);
  tick(1, 0);
  negotiation_ends(1);
  negotiation_begins(1);  // and once more
  operation_ends(1);
  operation_begins(1);
  operation_ends(1);
  take({.track = 1, .mark = Mark::Fail, .last = true});
  const auto records = records_of(path);
  check_form(records);
  const Row run{"B ALLREDUCE", "B GLOO_ALLREDUCE", "E", "E float32 [17, 3]"};
  Row want{"B NEGOTIATE_ALLREDUCE", "E"};
  want.insert(want.end(), run.begin(), run.end());
  for (const char* text : {"B NEGOTIATE_ALLREDUCE", "X 1", "X 0", "E"}) want.emplace_back(text);
  want.insert(want.end(), run.begin(), run.end());
  for (const char* text : {"B NEGOTIATE_ALLREDUCE", "E", "B ERROR", "E"}) want.emplace_back(text);
  EXPECT_EQ(row(records, "allreduce.a"), want);
}

TEST_F(TraceFileTest, what_began_in_another_file_does_not_end_in_this_one) {
  negotiation_ends(1);
  take({.track = 1, .mark = Mark::Begin, .span = Span::AllocateOutput});
  take({.track = 1, .mark = Mark::End, .span = Span::AllocateOutput});
  operation_ends(1);
  negotiation_begins(99);  // of an earlier recording: nobody knows its name
  check_form(records_of(path));
  EXPECT_EQ(row(records_of(path), "allreduce.a"), Row());
}

TEST_F(TraceFileTest, names_are_escaped) {
  const std::string name = "a \"quoted\" \\ \n\t \x01 name, gr\u00f6\u00dfer";
  names.add(2, name, false);
  negotiation_begins(2);
  std::string seen = name;
  EXPECT_TRUE(rows_of(records_of(path)).contains(seen)) << text_of(path);
}

TEST(Text, what_is_not_utf8_becomes_a_replacement_character) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"plain", "\"plain\""},
      {"\xc3\xb6 \xe2\x82\xac \xf0\x9f\x8e\xa1", "\"\xc3\xb6 \xe2\x82\xac \xf0\x9f\x8e\xa1\""},
      {"\xff", "\"\\ufffd\""},
      {"\xc3", "\"\\ufffd\""},                        // cut off
      {"\xc0\xaf", "\"\\ufffd\\ufffd\""},             // too long a form
      {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},  // a surrogate
      {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
      {"\xe2\x82|", "\"\\ufffd\\ufffd|\""},
  };
  for (const auto& [text, want] : cases) {
    std::string out;
    append_json(out, text);
    EXPECT_EQ(out, want);
  }
}

}  // namespace
}  // namespace farandole::testing

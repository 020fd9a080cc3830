/// The file of a timeline as tests look at it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "json.h"

namespace farandole::testing {

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "timeline-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline std::vector<Json> records_in(const std::string& text) {
  const auto json = JsonReader::read(text);
  EXPECT_TRUE(json && json->type == Json::Type::Array) << "not a JSON array:\n" << text;
  return json ? json->items : std::vector<Json>();
}

/// Of a complete file.
inline std::vector<Json> records_of(const std::string& path) { return records_in(text_of(path)); }

/// Of a file whose process was killed: the closing bracket, which viewers do not ask for, may be
/// missing, and what came after it was put away.
inline std::vector<Json> records_left(const std::string& path) {
  std::string text = text_of(path);
  if (JsonReader::read(text)) return records_in(text);
  text.erase(text.find_last_not_of(", \n") + 1);
  return records_in(text + "\n]");
}

/// Of a file that is being written. One that was caught in the middle of a write is read again.
inline std::vector<Json> records_meanwhile(const std::string& path) {
  std::string text;
  for (int attempt = 0; attempt < 5; ++attempt) {
    text = text_of(path);
    if (const auto json = JsonReader::read(text)) return json->items;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "no JSON while recording:\n" << text;
  return {};
}

/// Full name -> pid.
inline std::map<std::string, std::string> rows_of(const std::vector<Json>& records) {
  std::map<std::string, std::string> rows;
  for (const Json& record : records) {
    if (record["ph"] == "M" && record["name"] == "process_name" && record["pid"] != "0") {
      rows[record.members.at("args")["name"]] = record["pid"];
    }
  }
  return rows;
}

/// What is drawn in a row, in short: "B NEGOTIATE_ALLREDUCE", "X 0", "E", "E float32 [3]".
inline std::vector<std::string> row(const std::vector<Json>& records, const std::string& name) {
  const auto rows = rows_of(records);
  const auto found = rows.find(name);
  std::vector<std::string> drawn;
  for (const Json& record : records) {
    if (found == rows.end() || record["ph"] == "M" || record["pid"] != found->second) continue;
    std::string text = record["ph"];
    if (record.has("name")) text += " " + record["name"];
    if (record.has("args")) {
      text += " " + record.members.at("args")["dtype"] + " " + record.members.at("args")["shape"];
    }
    drawn.push_back(text);
  }
  return drawn;
}

/// What must hold in every file: headers first, time does not go back, spans nest, names come
/// before what is drawn in their rows. `closed`: no span is left open.
inline void check_form(const std::vector<Json>& records, bool closed = true) {
  if (records.empty()) return;
  ASSERT_GE(records.size(), 2U);
  EXPECT_EQ(records[0]["name"], "process_name");
  EXPECT_GT(records[0].members.at("args").number("start_time_since_epoch_in_micros"), 0);
  EXPECT_EQ(records[1]["name"], "process_sort_index");
  EXPECT_EQ(records[1].members.at("args").number("sort_index"), 0);
  std::map<std::string, int> depth;
  long long last = 0;
  for (std::size_t i = 2; i < records.size(); ++i) {
    const Json& record = records[i];
    EXPECT_FALSE(record.has("tid"));
    const std::string phase = record["ph"];
    if (phase == "M") {
      if (record["name"] == "process_name") {
        EXPECT_EQ(record.number("pid"), static_cast<long long>(depth.size()) + 1);
        depth[record["pid"]] = 0;
        ASSERT_LT(i + 1, records.size());
        EXPECT_EQ(records[i + 1]["name"], "process_sort_index");
      }
      continue;
    }
    EXPECT_GE(record.number("ts"), last);
    last = record.number("ts");
    if (phase == "i") {
      EXPECT_EQ(record["name"], "CYCLE_START");
      EXPECT_EQ(record["s"], "g");
      EXPECT_FALSE(record.has("pid"));
      continue;
    }
    ASSERT_TRUE(depth.contains(record["pid"])) << "a row without a name";
    int& open = depth[record["pid"]];
    if (phase == "B") ++open;
    if (phase == "E") {
      EXPECT_FALSE(record.has("name"));
      ASSERT_GT(open, 0) << "the end of nothing";
      --open;
    }
    if (phase == "X") {
      EXPECT_EQ(record.number("dur"), 0);
    }
  }
  for (const auto& [pid, open] : depth) {
    EXPECT_TRUE(!closed || open == 0) << "row " << pid << " is left open";
  }
}

}  // namespace farandole::testing

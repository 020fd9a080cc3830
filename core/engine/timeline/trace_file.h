/// A timeline as a file in the trace-event format that Chrome's viewer and Perfetto read: one JSON
/// array, closed after every write.
///
/// Every write begins at the closing bracket of the one before and ends with a bracket of its own.
/// What is in the file outlives the process, however that ends.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/log.h"
#include "engine/timeline/timeline_event.h"
#include "result.h"
#include "transport/fd.h"

namespace farandole {

class TraceFile final : public TimelineSink {
 public:
  /// Opens or creates the file, and leaves what is in it until begin(). Times are written as
  /// microseconds since `origin`, which is `epoch_micros` by the wall clock.
  static Result<std::unique_ptr<TraceFile>> open(const std::string& path, TimePoint origin,
                                                 std::int64_t epoch_micros, const Log& log);
  [[nodiscard]] bool is_same_as(const TraceFile& other) const noexcept {
    return device_ == other.device_ && inode_ == other.inode_;
  }
  /// Empties the file: an array without records.
  void begin();
  void take(std::span<const TimelineEvent> events, const TrackNames& names) override;

 private:
  /// A track as drawn in this file.
  struct Row {
    int pid = 0;
    int depth = 0;         ///< spans that are open
    bool decided = false;  ///< negotiated, but its operation has not ended
    /// Events of the next negotiation, if other ranks begin it while this rank still runs the
    /// operation. They are kept because spans of one row must not overlap.
    std::vector<TimelineEvent> next;
  };

  TraceFile(std::string path, Fd fd, TimePoint origin, std::int64_t epoch_micros, const Log& log);
  void apply(const TimelineEvent& event, const TrackNames& names);
  [[nodiscard]] Row* row_of(const TimelineEvent& event, const TrackNames& names);
  void draw_or_keep(Row& row, const TimelineEvent& event);
  void draw(Row& row, const TimelineEvent& event);
  void close(Row& row, TimePoint time);
  void fail(Row& row, TimePoint time);
  void fail_all(TimePoint time);

  // One record each, behind the last one.
  void next_record();
  void name_row(int pid, std::string_view name);
  void begin_span(Row& row, std::string_view name, TimePoint time);
  void end_span(Row& row, TimePoint time, const Signature* signature);
  void tick(const Row& row, std::int32_t member, TimePoint time);
  void cycle_start(TimePoint time);
  void append_time(TimePoint time);
  void append_pid(const Row& row);
  void flush();

  const std::string path_;
  const Fd fd_;
  const TimePoint origin_;
  const std::int64_t epoch_micros_;
  const Log& log_;
  dev_t device_ = 0;
  ino_t inode_ = 0;

  std::unordered_map<Track, Row> rows_;
  int last_pid_ = 0;
  bool empty_ = true;
  off_t bracket_ = 0;    // offset of the closing bracket
  bool broken_ = false;  // a write failed: the file stays as it was before
  std::string text_;     // not written yet
};

}  // namespace farandole

/// Records when operations were negotiated and run, while the job goes on.
///
/// Nothing is recorded: a look at one flag. While it records, an event costs its place in a buffer
/// under a short lock; a thread that exists only then makes text of the buffer and writes it every
/// 20 ms. Only rank 0 records: its negotiator hears everybody.
///
/// An operation gets a track at the first report that is recorded into a file, and is drawn there
/// if it has one: what ran already when the file was begun stays out of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/rank_set.h"
#include "engine/timeline/timeline_event.h"

namespace rueda {

class TraceFile;

class Timeline {
 public:
  /// `cycle`: how often at most the beginning of a cycle is marked. `log` outlives the timeline.
  Timeline(Rank rank, Duration cycle, const Log& log);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Records into a new file from here on. The current path: changes nothing. A file that cannot
  /// be opened: a line in the log, and what ran goes on. Any thread; returns once the file is open.
  void start(const std::string& path, bool mark_cycles);
  /// Everything recorded is in the file, which is closed, when this returns. Any thread.
  void stop();
  /// In a forked child the thread does not exist: forget it.
  void abandon() noexcept;

  [[nodiscard]] bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool marks_cycles() const noexcept {
    return marks_cycles_.load(std::memory_order_relaxed);
  }

  // What happens. Any thread; calls for one operation come in the order of its life.

  /// `who` of the members report an operation, after those who did `before`. Gives it a track if it
  /// has none: others may report before this rank gets around to start(), and what it submits after
  /// that has to be in the file.
  void reported(Track& track, const Key& key, Kind kind, const RankSet& who, const RankSet& before,
                const RankSet& members, TimePoint now);
  /// All are ready. `runs_here`: started() and finished() will follow.
  void negotiated(Track track, bool runs_here, TimePoint now);
  /// The negotiation ended in an error.
  void refused(Track track, TimePoint now);
  /// A batch starts. Tracks that are 0 are left out.
  void started(std::span<const Track> tracks, Kind kind, TimePoint now);
  /// The engine found memory for a result, inside of the operation.
  void allocated(Track track, TimePoint begin, TimePoint end);
  void finished(std::span<const Track> tracks,
                std::span<const std::shared_ptr<const Signature>> signatures, TimePoint now);
  /// The holder of the baton begins to work on submissions or messages.
  void cycle(TimePoint now);
  /// The world is over: everything that is open fails.
  void aborted(TimePoint now);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Newcomer {
    Track track;
    std::string name;
    bool once;
  };

  [[nodiscard]] Track track_of(const Key& key);  // with mutex_ held
  void append(TimelineEvent event);              // with mutex_ held
  void run(const std::stop_token& stop);
  /// Writes what is in the buffer; with writing_ held. `ends`: nothing more is for this file.
  void drain(bool ends);

  const Rank rank_;
  const Duration cycle_;
  const Log& log_;
  const TimePoint origin_;           // ts 0 of all files
  const std::int64_t epoch_micros_;  // the same moment by the wall clock

  std::atomic<bool> recording_{false};
  std::atomic<bool> marks_cycles_{false};

  std::mutex mutex_;  // guards the buffer; held for moments only
  bool on_ = false;   // recording_, for those who hold the lock
  std::vector<TimelineEvent> events_;
  std::vector<Newcomer> newcomers_;
  std::unordered_map<std::string, Track, Hash, std::equal_to<>> tracks_;  // by name and set
  Track last_track_ = 0;
  Track first_track_ = 1;  // of this file: lower ones are of files before
  TimePoint last_time_{};
  TimePoint next_cycle_{};
  bool left_out_ = false;  // operations, because the buffer was full

  std::mutex writing_;  // guards all below; taken before mutex_
  std::condition_variable_any stopping_;
  std::unique_ptr<TraceFile> file_;
  std::vector<TimelineEvent> batch_;  // events_ and newcomers_ that are being written
  std::vector<Newcomer> new_names_;
  TrackNames names_;

  std::mutex control_;  // guards start and stop; taken before the others
  std::string path_;
  std::jthread thread_;
};

}  // namespace rueda

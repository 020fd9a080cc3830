/// Records when operations were negotiated and run, while the job goes on.
///
/// While nothing is recorded, an event costs one look at a flag. While it records, an event is
/// appended to a buffer under a short lock. A thread, which exists only then, writes the buffer to
/// the file as text every 20 ms. Only rank 0 records, because its negotiator receives all reports.
///
/// An operation gets a track at its first report that is recorded, and only operations with a track
/// are drawn. So what was already running when a file was begun is not in it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/rank_set.h"
#include "engine/timeline/timeline_event.h"
#include "mutex.h"

namespace farandole {

class TraceFile;

class Timeline {
 public:
  /// `cycle`: the least time between two marks of a cycle. `log` outlives the timeline.
  Timeline(Rank rank, Duration cycle, const Log& log);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Records into a new file from here on; does nothing if `path` is the current file. If the file
  /// cannot be opened, it writes a line to the log and goes on as before. Any thread; returns once
  /// the file is open.
  void start(const std::string& path, bool mark_cycles);
  /// When this returns, everything recorded is in the file, and the file is closed. Any thread.
  void stop();
  /// Forgets the thread, which does not exist in a forked child: nor does another one.
  void abandon() noexcept FARANDOLE_NO_THREAD_SAFETY_ANALYSIS;

  [[nodiscard]] bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool marks_cycles() const noexcept {
    return marks_cycles_.load(std::memory_order_relaxed);
  }

  // Events. Any thread; the events of one operation come in order.

  /// The ranks `who` report an operation; the ranks `before` did so earlier. Gives the operation a
  /// track if it has none: other ranks may report it before this rank calls start(), and it has to
  /// be in the file if this rank submits it afterwards.
  void reported(Track& track, const Key& key, Kind kind, const RankSet& who, const RankSet& before,
                const RankSet& members, TimePoint now);
  /// All members have reported. `runs_here`: started() and finished() will follow.
  void negotiated(Track track, bool runs_here, TimePoint now);
  /// The negotiation ended in an error.
  void refused(Track track, TimePoint now);
  /// A batch starts. Tracks that are 0 are left out.
  void started(std::span<const Track> tracks, Kind kind, TimePoint now);
  /// The engine allocated memory for a result, during the operation.
  void allocated(Track track, TimePoint begin, TimePoint end);
  void finished(std::span<const Track> tracks,
                std::span<const std::shared_ptr<const Signature>> signatures, TimePoint now);
  /// The holder of the progress lock begins to work on submissions or messages.
  void cycle(TimePoint now);
  /// The world has failed: all open operations fail.
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

  [[nodiscard]] Track track_of(const Key& key) FARANDOLE_REQUIRES(mutex_);
  void append(TimelineEvent event) FARANDOLE_REQUIRES(mutex_);
  void run(const std::stop_token& stop);
  /// Writes what is in the buffer. `ends`: nothing more comes for this file.
  void drain(bool ends) FARANDOLE_REQUIRES(writing_) FARANDOLE_EXCLUDES(mutex_);

  const Rank rank_;
  const Duration cycle_;
  const Log& log_;
  const TimePoint origin_;           // ts 0 of all files
  const std::int64_t epoch_micros_;  // the same moment by the wall clock

  std::atomic<bool> recording_{false};
  std::atomic<bool> marks_cycles_{false};

  Mutex control_;  // start and stop; taken before the others
  std::string path_ FARANDOLE_GUARDED_BY(control_);
  std::jthread thread_ FARANDOLE_GUARDED_BY(control_);

  Mutex writing_;  // the file; taken before mutex_
  std::condition_variable_any stopping_;
  std::unique_ptr<TraceFile> file_ FARANDOLE_GUARDED_BY(writing_);
  // Events and newcomers that are being written.
  std::vector<TimelineEvent> batch_ FARANDOLE_GUARDED_BY(writing_);
  std::vector<Newcomer> new_names_ FARANDOLE_GUARDED_BY(writing_);
  TrackNames names_ FARANDOLE_GUARDED_BY(writing_);

  Mutex mutex_;                                   // the buffer; held for moments only
  bool on_ FARANDOLE_GUARDED_BY(mutex_) = false;  // recording_, for those who hold the lock
  std::vector<TimelineEvent> events_ FARANDOLE_GUARDED_BY(mutex_);
  std::vector<Newcomer> newcomers_ FARANDOLE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Track, Hash, std::equal_to<>> tracks_
      FARANDOLE_GUARDED_BY(mutex_);  // by name and set
  Track last_track_ FARANDOLE_GUARDED_BY(mutex_) = 0;
  /// First track of this file: lower ones belong to earlier files.
  Track first_track_ FARANDOLE_GUARDED_BY(mutex_) = 1;
  TimePoint last_time_ FARANDOLE_GUARDED_BY(mutex_){};
  TimePoint next_cycle_ FARANDOLE_GUARDED_BY(mutex_){};
  /// Operations were left out because the buffer was full.
  bool left_out_ FARANDOLE_GUARDED_BY(mutex_) = false;
};

}  // namespace farandole

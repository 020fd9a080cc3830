#include "engine/timeline/timeline.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "engine/base/wording.h"
#include "engine/timeline/trace_file.h"

namespace farandole {

namespace {

using std::chrono::milliseconds;
using Mark = TimelineEvent::Mark;
using Span = TimelineEvent::Span;

/// How long an event stays in the buffer at most.
constexpr auto kFlushPeriod = milliseconds(20);
/// If so many events are pending, about 50 MB, further operations are left out.
constexpr std::size_t kMostPending = std::size_t{1} << 20;
/// So many names keep their track for later uses. Each use of another name is a new track.
constexpr std::size_t kMostNames = std::size_t{1} << 16;
constexpr auto kShortestCycle = milliseconds(1);

std::int64_t epoch_micros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Timeline::Timeline(Rank rank, Duration cycle, const Log& log)
    : rank_(rank),
      cycle_(std::max<Duration>(cycle, kShortestCycle)),
      log_(log),
      origin_(Clock::now()),
      epoch_micros_(epoch_micros()) {}

Timeline::~Timeline() { stop(); }

// --- start and stop -----------------------------------------------------------------------------

void Timeline::start(const std::string& path, bool mark_cycles) {
  if (rank_ != 0) return;
  const Lock control(control_);
  if (thread_.joinable() && path == path_) return;
  auto opened = TraceFile::open(path, origin_, epoch_micros_, log_);
  if (!opened) {
    log_.write(LogLevel::Error, opened.error().what());
    return;
  }
  {
    const Lock writing(writing_);
    if (file_ && file_->is_same_as(**opened)) return;  // by another spelling
    if (file_) drain(true);                            // what was before is in the file before
    (*opened)->begin();
    file_ = std::move(*opened);
  }
  path_ = path;
  {
    const Lock lock(mutex_);
    on_ = true;
    next_cycle_ = {};  // every file begins with a mark of its own
  }
  marks_cycles_.store(mark_cycles, std::memory_order_relaxed);
  recording_.store(true, std::memory_order_relaxed);
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    ::pthread_setname_np(thread_.native_handle(), "hvd-timeline");
  }
}

void Timeline::stop() {
  const Lock control(control_);
  recording_.store(false, std::memory_order_relaxed);
  marks_cycles_.store(false, std::memory_order_relaxed);
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  bool left_out = false;
  {
    const Lock lock(mutex_);
    on_ = false;
    left_out = std::exchange(left_out_, false);
  }
  const Lock writing(writing_);
  drain(true);
  file_.reset();
  batch_ = {};
  if (left_out) {
    log_.write(LogLevel::Warning,
               "The timeline " + path_ +
                   " leaves out operations: they came faster than they could be written");
  }
  path_.clear();
}

void Timeline::abandon() noexcept {
  if (thread_.joinable()) thread_.detach();
}

// --- the writer's thread ------------------------------------------------------------------------

void Timeline::run(const std::stop_token& stop) {
  Lock writing(writing_);
  while (!stop.stop_requested()) {
    stopping_.wait_for(writing, stop, kFlushPeriod, [] { return false; });
    drain(false);
  }
}

void Timeline::drain(bool ends) {
  {
    const Lock lock(mutex_);
    std::swap(events_, batch_);
    std::swap(newcomers_, new_names_);
    if (ends) {
      first_track_ = last_track_ + 1;
      tracks_.clear();
    }
  }
  for (Newcomer& one : new_names_) names_.add(one.track, std::move(one.name), one.once);
  if (!batch_.empty()) {
    TimelineSink& sink = *file_;
    sink.take(batch_, names_);
  }
  for (const TimelineEvent& event : batch_) {
    if (event.last) names_.used(event.track);
  }
  batch_.clear();
  new_names_.clear();
  if (ends) names_.clear();
}

// --- events
// ---------------------------------------------------------------------------------------

void Timeline::append(TimelineEvent event) {
  // Threads read the clock before they take the lock, so times may come out of order.
  event.time = last_time_ = std::max(last_time_, event.time);
  events_.push_back(std::move(event));
}

Track Timeline::track_of(const Key& key) {
  if (events_.size() >= kMostPending) {
    left_out_ = true;
    return 0;
  }
  const bool once = key.name.empty() || tracks_.size() >= kMostNames;
  if (once) {
    newcomers_.push_back({.track = ++last_track_, .name = full_name(key), .once = true});
    return last_track_;
  }
  std::string longer;
  std::string_view name = key.name;
  if (key.process_set != 0) {
    longer = key.name;
    longer += '\0';
    longer += std::to_string(key.process_set) + ' ' + std::to_string(key.generation);
    name = longer;
  }
  if (const auto found = tracks_.find(name); found != tracks_.end()) return found->second;
  tracks_.emplace(name, ++last_track_);
  newcomers_.push_back({.track = last_track_, .name = key.name, .once = false});
  return last_track_;
}

void Timeline::reported(Track& track, const Key& key, Kind kind, const RankSet& who,
                        const RankSet& before, const RankSet& members, TimePoint now) {
  const Lock lock(mutex_);
  if (!on_) return;
  const bool begins = track < first_track_;
  if (begins) {
    track = track_of(key);
    if (track == 0) return;
    append({.time = now, .track = track, .mark = Mark::Begin, .kind = kind});
  }
  std::int32_t position = -1;
  for (const Rank rank : members.to_vector()) {
    ++position;
    if (!who.contains(rank) && !(begins && before.contains(rank))) continue;
    append({.time = now, .track = track, .member = position, .mark = Mark::Tick});
  }
}

void Timeline::negotiated(Track track, bool runs_here, TimePoint now) {
  const Lock lock(mutex_);
  if (!on_) return;
  append({.time = now, .track = track, .mark = Mark::End, .last = !runs_here});
}

void Timeline::refused(Track track, TimePoint now) {
  const Lock lock(mutex_);
  if (!on_) return;
  append({.time = now, .track = track, .mark = Mark::Fail, .last = true});
}

void Timeline::started(std::span<const Track> tracks, Kind kind, TimePoint now) {
  const Lock lock(mutex_);
  if (!on_) return;
  for (const Track track : tracks) {
    if (track == 0) continue;
    for (const Span span : {Span::Operation, Span::Transfer}) {
      append({.time = now, .track = track, .mark = Mark::Begin, .span = span, .kind = kind});
    }
  }
}

void Timeline::allocated(Track track, TimePoint begin, TimePoint end) {
  const Lock lock(mutex_);
  if (!on_) return;
  append({.time = begin, .track = track, .mark = Mark::Begin, .span = Span::AllocateOutput});
  append({.time = end, .track = track, .mark = Mark::End, .span = Span::AllocateOutput});
}

void Timeline::finished(std::span<const Track> tracks,
                        std::span<const std::shared_ptr<const Signature>> signatures,
                        TimePoint now) {
  const Lock lock(mutex_);
  if (!on_) return;
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    if (tracks[i] == 0) continue;
    append({.time = now, .track = tracks[i], .mark = Mark::End, .span = Span::Transfer});
    append({.time = now,
            .signature = signatures[i],
            .track = tracks[i],
            .mark = Mark::End,
            .span = Span::Operation,
            .last = true});
  }
}

void Timeline::cycle(TimePoint now) {
  const Lock lock(mutex_);
  if (!on_ || now < next_cycle_) return;
  next_cycle_ = now + cycle_;
  append({.time = now, .mark = Mark::Cycle});
}

void Timeline::aborted(TimePoint now) {
  const Lock lock(mutex_);
  if (!on_) return;
  append({.time = now, .mark = Mark::Abort});
}

}  // namespace farandole

/// Runs the dispatches one after another: one batch under way, the others queued behind it. Owns
/// the backends of the process sets, which open and close at their place in that order.
///
/// A batch is an object with step(), not a stack frame: whoever holds the baton steps it, and may
/// leave between two chunks. Holder of the baton only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "collectives/collective.h"
#include "engine/negotiator.h"
#include "engine/timeline.h"
#include "engine/traced_allocator.h"
#include "engine/work.h"

namespace rueda {

/// How often and how much each data path carried.
struct PathCount {
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
};

class Dispatcher {
 public:
  /// Makes the backend of a new set of which this rank is a member.
  using OpenSet =
      std::function<Result<std::unique_ptr<Backend>>(std::int32_t id, std::span<const Rank> ranks)>;

  /// `world`: the backend of set 0. A started batch without any progress for `timeout` is a
  /// failure; zero: never. `timeline`: hears of the batches that have tracks; null: nobody does.
  Dispatcher(Backend& world, OpenSet open_set, Duration timeout, Timeline* timeline = nullptr)
      : world_(world), open_set_(std::move(open_set)), timeout_(timeout), timeline_(timeline) {}

  /// A set that exists from the start: all members open it before anything runs in it.
  Result<void> open(std::int32_t id, std::span<const Rank> ranks);

  /// Entries of one dispatch, in order; null: this rank has joined and takes part with zeros.
  struct Batch {
    std::int32_t process_set = 0;
    std::vector<std::unique_ptr<Entry>> entries;
    std::vector<std::shared_ptr<const Signature>> signatures;  ///< none: nothing is to be run
    std::vector<Track> tracks = {};  ///< on the timeline, by entry; empty: on none
    std::optional<SetChange> change = {};
    std::optional<std::int64_t> value = {};  ///< what its entries end with
  };
  void enqueue(Batch batch) { queue_.push_back(std::move(batch)); }

  /// Does about one chunk of work. An error means that the world is out of step: nothing more can
  /// run.
  Result<Step> step(TimePoint now);

  /// Entries of a batch that has just completed. Empty if none has.
  [[nodiscard]] std::vector<std::unique_ptr<Entry>> take_completed() {
    return std::move(completed_);
  }
  /// Everything that was queued or under way; the operation is dropped.
  [[nodiscard]] std::vector<std::unique_ptr<Entry>> take_all();

  [[nodiscard]] bool idle() const noexcept { return !operation_ && queue_.empty(); }
  [[nodiscard]] bool running() const noexcept { return operation_ != nullptr; }
  /// The operation under way that needs that rank; empty if there is none.
  [[nodiscard]] std::string under_way(Rank rank) const;
  /// When step() has to look at the clock again.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// Any thread.
  [[nodiscard]] std::map<std::string, PathCount, std::less<>> paths() const {
    const std::lock_guard lock(paths_mutex_);
    return paths_;
  }

 private:
  Result<void> start(TimePoint now);
  [[nodiscard]] Rank self() const;
  [[nodiscard]] Backend* backend_of(std::int32_t id) const;
  [[nodiscard]] Error where(Error error) const;
  void complete();
  void count_path();
  [[nodiscard]] Error stuck(TimePoint now) const;

  Backend& world_;
  OpenSet open_set_;
  Duration timeout_;
  Timeline* timeline_;
  std::map<std::int32_t, std::unique_ptr<Backend>> sets_;  // that this rank is in
  std::deque<Batch> queue_;
  Batch running_;
  std::vector<Task> tasks_;                          // of running_
  std::vector<std::unique_ptr<std::byte[]>> zeros_;  // of running_: what a joined rank contributes
  std::deque<TracedAllocator> allocators_;           // of running_, if it is on the timeline
  const Backend* backend_ = nullptr;                 // of running_
  std::size_t bytes_ = 0;                            // of running_, on this rank
  std::unique_ptr<Operation> operation_;
  TimePoint last_progress_{};
  std::vector<std::unique_ptr<Entry>> completed_;
  mutable std::mutex paths_mutex_;  // guards paths_
  std::map<std::string, PathCount, std::less<>> paths_;
};

}  // namespace rueda

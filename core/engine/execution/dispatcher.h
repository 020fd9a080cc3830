/// Runs the dispatches one after another: one batch under way, the others queued behind it. Owns
/// the backends of the process sets, which open and close at their place in that order.
///
/// A batch is an object with step(), not a stack frame: whoever holds the progress lock steps it,
/// and may leave between two chunks. Holder of the progress lock only.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "collectives/collective.h"
#include "collectives/task.h"
#include "engine/base/log.h"
#include "engine/control/negotiator.h"
#include "engine/execution/device_batches.h"
#include "engine/execution/work.h"
#include "engine/timeline/timeline.h"
#include "mutex.h"

namespace farandole {

/// An operation, by a name that is the same on all its members.
struct Position {
  enum class Stream : std::uint8_t { None = 0, Dispatches = 1, Proposals = 2 };
  Stream stream = Stream::None;
  /// Grows from one dispatch to the next, and from one operation that a process set has agreed on
  /// by itself to the next (proposed_number() in transport/operation_tag.h).
  std::uint64_t number = 0;
  /// Numbers of one order grow from operation to operation.
  [[nodiscard]] std::pair<Stream, std::uint64_t> order() const noexcept {
    return {stream, stream == Stream::Proposals ? number >> kProposedSetShift : 0};
  }
  bool operator==(const Position&) const = default;
};

/// How far a rank has come.
struct Standing {
  enum class State : std::uint8_t { Before = 0, In = 1, Past = 2 };
  State state = State::Before;
  Duration quiet{};             ///< how long ago its last progress was, in whatever it was at
  std::vector<Rank> waits_for;  ///< in what it is at now; none: it is at nothing
};

/// Shows on the timeline when an operation gets memory for its result.
class TracedAllocator final : public OutputAllocator {
 public:
  TracedAllocator(OutputAllocator& inner, Timeline& timeline, Track track) noexcept
      : inner_(inner), timeline_(timeline), track_(track) {}

  Result<std::byte*> allocate(const Shape& shape, DType dtype) override {
    const auto begin = Clock::now();
    auto memory = inner_.allocate(shape, dtype);
    timeline_.allocated(track_, begin, Clock::now());
    return memory;
  }

 private:
  OutputAllocator& inner_;
  Timeline& timeline_;
  Track track_;
};

/// How often and how much each data path carried.
struct PathCount {
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
};

class Dispatcher {
 public:
  /// Makes the backend of a new set of which this rank is a member.
  using OpenSet = std::function<Result<std::unique_ptr<Backend>>(const SetChange& added)>;

  /// `world`: the backend of set 0. A started batch without any progress for `timeout` is
  /// overdue(); zero: never. `timeline`: hears of the batches that have tracks; null: nobody does.
  /// `devices`: starts batches on devices; null: none come.
  Dispatcher(Backend& world, OpenSet open_set, Duration timeout, Timeline* timeline = nullptr,
             DeviceBatches* devices = nullptr)
      : world_(world),
        open_set_(std::move(open_set)),
        timeout_(timeout),
        timeline_(timeline),
        devices_(devices) {}

  /// A set that exists from the start: all members open it before anything runs in it.
  Result<void> open(const SetChange& added);

  /// Entries of one dispatch, in order; null: this rank has joined and takes part with zeros.
  struct Batch {
    std::int32_t process_set = 0;
    std::vector<std::unique_ptr<Entry>> entries;
    std::vector<std::shared_ptr<const Signature>> signatures;  ///< none: nothing is to be run
    std::vector<Track> tracks = {};  ///< on the timeline, by entry; empty: on none
    std::optional<SetChange> change = {};
    std::optional<std::int64_t> value = {};  ///< what its entries end with
    Position position = {};                  ///< what other ranks know it by
  };
  void enqueue(Batch batch) { queue_.push_back(std::move(batch)); }

  /// Does about one chunk of work. An error means that the world is out of step: nothing more can
  /// run.
  Result<Step> step(TimePoint now);

  /// Entries of a batch that has just completed. Empty if none has.
  [[nodiscard]] std::vector<std::unique_ptr<Entry>> take_completed() {
    return std::move(completed_);
  }
  /// Why all members have refused the batch that has just completed; none: it was done.
  [[nodiscard]] std::optional<Error> take_refusal() {
    return std::exchange(refusal_, std::nullopt);
  }
  /// The set that was added or removed by the batch that has just completed.
  [[nodiscard]] std::optional<SetChange> take_change() {
    return std::exchange(changed_, std::nullopt);
  }
  /// Of a set that this rank is in; null: it is in none of that id.
  [[nodiscard]] Backend* backend_of(std::int32_t id) const;
  /// The world has failed: what is on devices ends as it is.
  void abort_devices() noexcept {
    if (devices_ != nullptr) devices_->abort();
  }
  /// No batch comes any more, and nothing runs: the other ranks will free memory of devices that is
  /// open here.
  void close_devices() noexcept {
    if (devices_ != nullptr) devices_->close_all();
  }
  /// Everything that was queued or under way; the operation is dropped.
  [[nodiscard]] std::vector<std::unique_ptr<Entry>> take_all();

  [[nodiscard]] bool idle() const noexcept { return !operation_ && queue_.empty(); }
  [[nodiscard]] bool running() const noexcept { return operation_ != nullptr; }
  /// The batch that would start next is one on devices.
  [[nodiscard]] bool next_on_devices() const noexcept {
    return !operation_ && !queue_.empty() && !queue_.front().signatures.empty() &&
           queue_.front().signatures.front()->device != Device::Host;
  }
  /// The operation under way that needs that rank; empty if there is none.
  [[nodiscard]] std::string under_way(Rank rank) const;
  /// When overdue() will be true, unless something moves.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// When step() has something to look at though nothing arrives.
  [[nodiscard]] std::optional<TimePoint> due() const {
    return operation_ ? operation_->due() : std::nullopt;
  }
  /// The operation under way has made no progress for the time limit …
  [[nodiscard]] bool stalled(TimePoint now) const;
  /// … and it is time to do something about it.
  [[nodiscard]] bool overdue(TimePoint now) const;
  /// Nothing is overdue until then.
  void wait_until(TimePoint when) noexcept { patient_until_ = when; }
  /// Of the operation under way: its position, and whom it waits for, without this rank.
  [[nodiscard]] Position position() const { return running_.position; }
  [[nodiscard]] std::vector<Rank> awaited() const;
  /// What there is to say about the operation under way when it is stuck.
  [[nodiscard]] Error stuck(TimePoint now) const;
  /// How far this rank has come, for one who asks about that operation.
  [[nodiscard]] Standing standing(const Position& position, TimePoint now) const;
  /// Any thread.
  [[nodiscard]] std::map<std::string, PathCount, std::less<>> paths() const {
    const Lock lock(paths_mutex_);
    return paths_;
  }
  /// How much went by each path, where such lines are wanted. Any thread.
  void log_paths(Log& log) const;

 private:
  Result<void> start(TimePoint now);
  [[nodiscard]] Rank self() const;
  [[nodiscard]] Error where(Error error) const;
  void complete();
  void count_path();

  Backend& world_;
  OpenSet open_set_;
  Duration timeout_;
  Timeline* timeline_;
  DeviceBatches* devices_;
  std::map<std::int32_t, std::unique_ptr<Backend>> sets_;  // that this rank is in
  std::deque<Batch> queue_;
  struct Running : Batch {
    std::vector<std::unique_ptr<std::byte[]>> zeros = {};  // what a joined rank contributes
    std::list<TracedAllocator> allocators = {};            // if it is on the timeline
  };
  Running running_;
  std::vector<Task> tasks_;           // of running_
  const Backend* backend_ = nullptr;  // of running_
  bool on_devices_ = false;           // running_
  std::size_t bytes_ = 0;             // of running_, on this rank
  std::unique_ptr<Operation> operation_;
  TimePoint last_progress_{};  // in running_; if nothing runs: when the last one ended
  TimePoint patient_until_{};  // nothing is overdue before
  /// By order of positions: the last number that was started.
  std::map<std::pair<Position::Stream, std::uint64_t>, std::uint64_t> started_;
  std::vector<std::unique_ptr<Entry>> completed_;
  std::optional<Error> refusal_;  // of completed_
  std::optional<SetChange> changed_;
  mutable Mutex paths_mutex_;
  std::map<std::string, PathCount, std::less<>> paths_ FARANDOLE_GUARDED_BY(paths_mutex_);
};

}  // namespace farandole

/// The engine of one rank: takes submissions of any thread, agrees with the other ranks on one
/// order, and runs it. An object: tests make eight of them in one process.
#pragma once

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "backends/foreign/foreign.h"
#include "engine/base/fork_guard.h"
#include "engine/base/log.h"
#include "engine/base/notifier.h"
#include "engine/base/phase.h"
#include "engine/base/progress.h"
#include "engine/control/negotiator.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/execution/executor.h"
#include "engine/execution/work.h"
#include "engine/failure/detector.h"
#include "engine/timeline/timeline.h"

namespace rueda {

struct EngineOptions {
  Rank rank = 0;
  int size = 1;
  std::vector<std::vector<Rank>> groups{{0}};
  std::vector<std::string> hosts{"localhost"};
  NegotiatorOptions negotiator;  ///< its process_sets: those that exist from the start
  Duration operation_timeout = std::chrono::seconds(30);
  HeartbeatOptions heartbeat;
  int thread_affinity = -1;  ///< core of the engine thread; -1: any
  /// Handles are above it, so that one of an earlier engine of this process means nothing here.
  Handle first_handle = 0;
  LogLevel log_level = LogLevel::Warning;
  bool log_hide_time = false;
  std::string timeline;  ///< file that rank 0 records into from the start; empty: none
  bool timeline_mark_cycles = false;
};

/// One tensor of a submission.
struct TensorRequest {
  DType dtype = DType::Float32;
  Shape shape;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  ///< null: the engine allocates
  /// Alltoall: rows for each member; empty: equally many.
  std::vector<std::int64_t> splits = {};
  /// Alltoall: gets the number of rows from each member; null: not wanted.
  std::int32_t* received = nullptr;
};

/// A submission: one tensor, or a group under one handle.
struct Request {
  Kind kind = Kind::Allreduce;
  std::string name;  ///< the user's, without prefix; empty: counted
  std::vector<TensorRequest> tensors;
  bool grouped = false;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = -1;
  std::int32_t process_set = 0;
  std::vector<Rank> ranks;  ///< of the set to add
  bool waited = false;      ///< the caller will wait for it at once
  bool demanded = false;    ///< its end is wanted now, but no thread stands still for it
  std::function<void(const Work&)> on_done;
  OutputProvider provide;  ///< of results without `out`; null: the engine allocates
  std::uint64_t call = 0;  ///< of a call without name: its number, if it has been counted already
};

class Engine final : private Driver, private FailureDetector::Owner {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  /// Where bootstrap puts descriptors, before start().
  [[nodiscard]] Peers& peers() noexcept { return peers_; }
  /// All operations between ranks go by backends of that class. Before start(); the same on every
  /// rank.
  void use(std::shared_ptr<ForeignClass> backend);
  /// Everything that takes memory or can be refused, without a word to anybody: so that the ranks
  /// meet only when all of them have it. start() does it otherwise. Once.
  Result<void> open();
  Result<void> start();

  /// Any thread, never blocks. The memory stays valid until the handle is done.
  Result<Handle> submit(Request request);
  /// Submits and waits, for a moment: results are in memory that the request names. 0: done; else
  /// the handle to go on with. May take what is in the request.
  Result<Handle> run(Request& request);
  /// Submits what no thread waits for; the caller stays for a moment only, as the other ranks may
  /// be there already. 0: done, and `on_done` is not called; else it is. May take what is in the
  /// request.
  Result<Handle> launch(Request& request);
  /// This rank has no more data. Ends when all ranks have joined, with the one that was last.
  Result<Handle> join(std::function<void(const Work&)> on_done = {});
  /// Collective over the world, like their removal. Ends with the number of the set.
  Result<Handle> add_process_set(std::vector<Rank> ranks);
  Result<Handle> remove_process_set(std::int32_t id);
  [[nodiscard]] Rank rank() const noexcept { return options_.rank; }
  /// Members by number; 0 is the world.
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> process_sets() const;
  /// Whether it is done, without waiting. No value: unknown handle.
  std::optional<bool> poll(Handle handle);
  /// Waits until the deadline at most. True: done, take() it. No value: unknown handle.
  std::optional<bool> wait(Handle handle, TimePoint deadline);
  /// Everything submitted so far is wanted now: one demand in place of many. Goes with a wait().
  void want_all();
  /// What a handle stands for; null if unknown. Any thread.
  [[nodiscard]] std::shared_ptr<Work> find(Handle handle) const;
  /// Forgets a handle and returns what it stands for; null if unknown.
  std::shared_ptr<Work> take(Handle handle);
  /// Forgets all handles and returns what they stand for.
  std::vector<std::shared_ptr<Work>> abandon_all();

  /// Cooperative: ends the world for all ranks, waits until everybody has finished what was decided
  /// (1 s at most after this rank has). Idempotent. Not from a callback. `why`: what others are
  /// told that still have operations; without the rank.
  void shutdown(wire::Departure why = {});
  /// Why the world has failed, if it has: the first cause, or how a rank has ended it by its
  /// script's failure, or by leaving while this one needed it.
  [[nodiscard]] std::optional<Error> failure() const;

  /// Records into a new file, which is open on return. Rank 0 does, the others write nothing. A
  /// file that cannot be written: a line in the log. Any thread.
  void start_timeline(const std::string& path, bool mark_cycles);
  /// The file is complete on return.
  void stop_timeline();

  [[nodiscard]] std::map<std::string, PathCount, std::less<>> paths() const;
  /// Recycled memory, also for results that callers provide. Any thread.
  [[nodiscard]] HostBuffer memory(std::size_t bytes) const { return pool_->take(bytes); }
  /// The same, reachable for all ranks of this host, which reduce tensors in it where they lie. No
  /// data() where there is none: nobody shares memory with this rank, none is left, or the system
  /// does not let this rank look into that of the others. After start(). Any thread.
  [[nodiscard]] HostBuffer shared_memory(std::size_t bytes) {
    return shared_pool_ && peers_.map_heaps() ? shared_pool_->take(bytes) : HostBuffer();
  }
  [[nodiscard]] bool in_child() const noexcept { return fork_guard_.in_child(); }
  /// After shutdown(): a verb of a foreign backend did not end, and may still work on the tensors
  /// of operations that count as done.
  [[nodiscard]] bool left_behind() const noexcept {
    return left_behind_.load(std::memory_order_relaxed);
  }

 private:
  // Driver: the holder of the baton.
  bool advance() override;
  [[nodiscard]] bool busy() const override;
  [[nodiscard]] bool in_operation() const override { return dispatcher_ && dispatcher_->running(); }
  [[nodiscard]] bool alerted() const override {
    return effects_pending_.load() && !phase_.has_failed();
  }
  [[nodiscard]] bool awaits_descriptors() const override {
    return !phase_.quiet() && peers_.awaits_descriptors();
  }
  [[nodiscard]] std::optional<TimePoint> next_deadline() const override;
  void watch(std::vector<pollfd>& fds) const override { detector_->watch(fds); }
  void woken(const pollfd* fds, std::size_t count) override { detector_->woken(fds, count); }
  void pulse() noexcept override { detector_->pulse(); }

  // FailureDetector::Owner: the same.
  bool orderly_end() override;
  Needs needs(Rank rank) override;
  void abort(const Error& cause, std::optional<Rank> from) override;

  /// An operation that this rank has offered to all others.
  struct Offered {
    enum class End : std::uint8_t { None, Agreed, Moved, Failed };
    Key key;  // with the signature: kept between calls for their memory
    Signature signature;
    Request* request = nullptr;  // of the caller, who stands still; or `kept`
    Request kept;
    std::shared_ptr<Work> work;  // null while the caller stands still
    Handle handle = 0;
    std::size_t data_begin = 0;
    std::size_t bytes = 0;
    bool large = false;  // the data do not go with it
    std::uint32_t round = 0;
    TimePoint ask_at{};  // time zero: not any more
    End end = End::None;
    Error error;  // if it failed
  };
  /// What has been decided behind an own offer that is open: it takes its place in the order when
  /// the offer has its verdict.
  struct Held {
    std::vector<Dispatch> dispatches;
    std::optional<Rank> joined_last;
    std::size_t dispatches_before_join = 0;
    [[nodiscard]] bool empty() const noexcept { return dispatches.empty() && !joined_last; }
    void clear() noexcept {
      dispatches.clear();
      joined_last.reset();
    }
  };
  bool offer(Request& request);
  Result<Handle> see_offer_through(bool stays);
  bool step_offer(TimePoint now);
  bool move_offers(TimePoint now);
  void called(std::span<const std::byte> frame, Rank from, TimePoint now);
  void take_agreed();
  void hold(Effects& decided, TimePoint now);
  void release_held();
  void end_offer(Offered::End end, Error error);
  void rest();
  [[nodiscard]] bool on_offer(const Key& key);

  Result<std::shared_ptr<Work>> admit(Request& request, std::shared_ptr<Work> work,
                                      bool agreed = false);
  void note_submission(bool fresh);
  [[nodiscard]] static Error forked();
  void press(void (Negotiator::*want)(TimePoint, Effects&));
  bool receive(TimePoint now);
  bool apply_effects(TimePoint now);
  bool step_batch(TimePoint now);
  Result<void> open_parts();
  Result<void> open_sets();
  [[nodiscard]] Result<void> check_change(const Request& request) const;
  void enqueue(Dispatch& dispatch);
  void enqueue_joined(Rank last);
  void finish(std::vector<std::unique_ptr<Entry>> entries, const std::optional<Error>& error);
  void complete(const std::shared_ptr<Work>& work);
  void publish(std::unique_lock<std::mutex>& lock, bool comes);
  [[nodiscard]] const Members& members_of(const ProcessSet& set);
  void end_foreign();
  [[nodiscard]] bool at_rest() const;

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  [[nodiscard]] static std::int64_t nanoseconds(TimePoint time) {
    return time.time_since_epoch().count();
  }

  void tell(bool comes);
  void drive_alone();
  void note_tick();
  std::uint64_t next_unnamed(std::uint32_t generation);

  EngineOptions options_;
  Log log_;
  Timeline timeline_;
  Peers peers_;
  ForkGuard fork_guard_;  // ends before the descriptors: their numbers may be used again
  Notifier notifier_;
  Executor executor_;                         // runs only if there is a foreign backend
  std::unique_ptr<ForeignBackends> foreign_;  // null: our own
  std::shared_ptr<HostPool> pool_;
  std::shared_ptr<HostPool> shared_pool_;  // null: this rank shares no memory
  std::unique_ptr<Progress> progress_;

  // Guarded by mutex_: touched by every submission, so held for moments only.
  mutable std::mutex mutex_;
  std::unique_ptr<Negotiator> negotiator_;
  Effects effects_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Entry>>
      entries_;  // by ticket, until dispatched
  std::unordered_map<Handle, std::shared_ptr<Work>> works_;
  Handle last_handle_;
  /// Calls without a name since this rank joined last, also refused ones, by generation of the set.
  std::unordered_map<std::uint32_t, std::uint64_t> unnamed_calls_;
  std::uint64_t joins_ = 0;  // of this rank
  std::uint64_t last_ticket_ = 0;
  std::uint64_t join_ticket_ = 0;             // of the join in flight; 0: none
  std::map<std::uint32_t, Members> members_;  // by generation of the set, as far as asked for
  std::optional<Error> failed_;               // first cause; nothing runs any more
  Offered offered_;                           // changed by the holder of the baton only
  Held held_;                                 // the same
  PathCount offers_run_;                      // what was offered and agreed

  // Holder of the baton only.
  std::unique_ptr<Dispatcher> dispatcher_;
  Effects applying_;
  std::unique_ptr<FailureDetector> detector_;

  std::atomic<bool> effects_pending_{false};
  std::atomic<std::int64_t> next_tick_ns_;
  std::atomic<std::size_t> unfinished_{0};  // works that are not done
  std::atomic<bool> left_behind_{false};
  Phase phase_;

  std::mutex lifecycle_;  // start and shutdown
  bool opened_ = false;
  bool started_ = false;
  std::jthread thread_;
};

}  // namespace rueda

/// The engine of one rank: takes submissions of any thread, agrees with the other ranks on one
/// order, and runs it. An object: tests make eight of them in one process.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>

#include "backends/foreign_backends.h"
#include "devices/devices.h"
#include "engine/base/fork_guard.h"
#include "engine/base/log.h"
#include "engine/base/notifier.h"
#include "engine/base/phase.h"
#include "engine/base/progress.h"
#include "engine/calls.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/control_loop.h"
#include "engine/execution/device_batches.h"
#include "engine/execution/dispatcher.h"
#include "engine/execution/executor.h"
#include "engine/execution/host_copy.h"
#include "engine/execution/submission.h"
#include "engine/execution/submissions.h"
#include "engine/fast_path/fast_path.h"
#include "engine/options.h"
#include "engine/timeline/timeline.h"
#include "mutex.h"

namespace farandole {

class Engine final {
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
  Result<void> open() {
    const Lock lifecycle(lifecycle_);
    return open_parts();
  }
  Result<void> start();

  /// Connections that were left out of the world at first, and are wanted now; see Peers. -1: none
  /// were. After open(). Any thread, as the calls below.
  [[nodiscard]] int wanted_bell() const noexcept;
  [[nodiscard]] std::vector<Rank> wanted_connections();
  /// The connections to one of them, or why there are none.
  void bring(LateConnections::Arrival arrival);
  /// A descriptor that must not stay open in a forked child: see ForkGuard.
  void cover(int descriptor) { fork_guard_.cover_also(descriptor); }
  /// Before it is closed.
  void uncover(int descriptor) { fork_guard_.uncover(descriptor); }

  /// Any thread. The memory stays valid until the handle is done. May take what is in the
  /// submission. In the first two modes it never blocks. In blocking mode the caller stays for a
  /// moment; in callback mode it does so only where nothing else is under way, as the other ranks
  /// may be there already.
  Result<Handle> submit(Submission&& submission);
  [[nodiscard]] Rank rank() const noexcept { return options_.rank; }
  /// Members by number; 0 is the world.
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> process_sets() const {
    if (in_child()) return {};
    return negotiation_.process_sets();
  }
  /// Whether it is done, without waiting. No value: unknown handle.
  std::optional<bool> poll(Handle handle) {
    if (in_child()) return false;  // a thread of the parent may have held the lock
    return calls_.poll(handle);
  }
  /// Waits until the deadline at most. True: done, take() it. No value: unknown handle.
  std::optional<bool> wait(Handle handle, TimePoint deadline) {
    if (in_child()) return false;  // the same
    return calls_.wait(handle, deadline);
  }
  /// The same for a caller that gives up: nobody counts it as blocked, so no deadlock is claimed.
  std::optional<bool> watch(Handle handle, TimePoint deadline) {
    if (in_child()) return false;
    return calls_.watch(handle, deadline);
  }
  /// The caller of wait() does not come back to it. Any thread.
  void leave(Handle handle) {
    if (!in_child()) calls_.leave(handle);
  }
  /// See Handles. Graphs submit from threads that nobody knows.
  [[nodiscard]] std::uint64_t completions() const noexcept { return handles_.completions(); }
  void stand_still(std::optional<std::uint64_t> since) noexcept {
    handles_.stand_still(graphs_.load() ? std::nullopt : since);
  }
  /// Everything submitted so far is wanted now: one demand in place of many. Goes with a wait().
  void mark_all_waited() {
    if (!in_child()) calls_.mark_all_waited();
  }
  /// What a handle stands for; null if unknown. Any thread.
  [[nodiscard]] std::shared_ptr<Work> find(Handle handle) const { return calls_.find(handle); }
  /// Forgets a handle and returns what it stands for; null if unknown.
  std::shared_ptr<Work> take(Handle handle) { return calls_.take(handle); }
  /// Forgets all handles and returns what they stand for.
  std::vector<std::shared_ptr<Work>> abandon_all() { return calls_.abandon_all(); }

  /// Cooperative: ends the world for all ranks, waits until everybody has finished what was decided
  /// (1 s at most after this rank has). Idempotent. Not from a callback. `why`: what others are
  /// told that still have operations; without the rank.
  void shutdown(wire::Departure why = {});
  /// Why the world has failed, if it has: the first cause, or how a rank has ended it by its
  /// script's failure, or by leaving while this one needed it.
  [[nodiscard]] std::optional<Error> failure() const { return negotiation_.failure(); }

  /// Records into a new file, which is open on return. Rank 0 does, the others write nothing. A
  /// file that cannot be written: a line in the log. Any thread.
  void start_timeline(const std::string& path, bool mark_cycles) {
    if (!in_child()) timeline_.start(path, mark_cycles);
  }
  /// The file is complete on return.
  void stop_timeline() {
    if (!in_child()) timeline_.stop();
  }

  [[nodiscard]] std::map<std::string, PathCount, std::less<>> paths() const;
  /// Recycled memory, also for results that callers provide. Any thread.
  [[nodiscard]] HostBuffer memory(std::size_t bytes) const { return pool_->take(bytes); }
  /// It is in host memory, or on a device that can be used; else submit() says why not. Any thread.
  [[nodiscard]] bool serves(const Tensor& tensor) {
    return tensor.device == Device::Host ||
           static_cast<bool>(devices_.at(tensor.device, tensor.device_index));
  }
  /// A copy of a tensor in host memory that its device reaches, in the order of its stream, or of
  /// one in host memory. Any thread.
  [[nodiscard]] Result<HostBuffer> copy(const Tensor& tensor) {
    return host_copy(tensor, devices_, *pool_);
  }
  /// Recycled memory, reachable for all ranks of this host, which reduce tensors in it where they
  /// lie. No data() where there is none: nobody shares memory with this rank, none is left, or the
  /// system does not let this rank look into that of the others. After start(). Any thread.
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
  Result<void> open_parts() FARANDOLE_REQUIRES(lifecycle_);
  void wire();
  void end_foreign();
  void end_devices();

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
  Devices devices_;
  Phase phase_;
  Negotiation negotiation_;
  Handles handles_;
  Submissions submissions_;
  Calls calls_;

  // From open() on.
  std::optional<DeviceBatches> device_batches_;
  std::optional<Dispatcher> dispatcher_;
  std::optional<ControlLoop> loop_;
  std::optional<FastPath> fast_path_;  // none: a backend in Python must see every operation

  std::atomic<bool> left_behind_{false};
  std::atomic<bool> graphs_{false};  // something was submitted in callback mode

  Mutex lifecycle_;      // start and shutdown
  bool opened_ = false;  // changes before the parts are shared
  bool started_ FARANDOLE_GUARDED_BY(lifecycle_) = false;
  EngineThread thread_ FARANDOLE_GUARDED_BY(lifecycle_);
};

}  // namespace farandole

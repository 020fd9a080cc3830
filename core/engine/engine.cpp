/// Wiring, from start to shutdown.

#include "engine/engine.h"

#include "engine/execution/shared_memory.h"

namespace farandole {

namespace {

/// Enough for what is gathered again and again; little beside the tensors of whoever needs so much.
constexpr std::size_t kKeptOutputBytes = std::size_t{256} << 20;
/// For a foreign backend to close its sets, or to notice that it was told to give up.
constexpr auto kForeignGrace = std::chrono::seconds(5);

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      log_(options_.rank, options_.log_level, options_.log_hide_time),
      timeline_(options_.rank, options_.negotiator.cycle, log_),
      peers_(options_.rank, options_.size, options_.groups, options_.hosts),
      pool_(std::make_shared<HostPool>(kKeptOutputBytes)),
      devices_(options_.device_driver, [this] { loop_->progress().alert(); }),
      handles_(options_.first_handle, notifier_),
      submissions_(negotiation_, handles_, peers_, pool_),
      calls_(negotiation_, submissions_, handles_, peers_) {
  peers_.set_direct_copies(options_.direct_copies);
  if (options_.segment_limit_bytes) peers_.set_segment_limit(*options_.segment_limit_bytes);
}

Engine::~Engine() {
  if (in_child()) {  // threads did not survive the fork, and nobody may hear from the child
    thread_.abandon();
    notifier_.abandon();
    executor_.abandon();
    timeline_.abandon();
    if (device_batches_) device_batches_->abandon();
    devices_.abandon();
    return;
  }
  shutdown();
  devices_.disconnect();
  end_devices();
  pool_->close();  // results of this world may live on, and would keep it
}

/// Nothing waits for ever: a kernel of the user that never ends is left alone.
void Engine::end_devices() {
  const TimePoint deadline = Clock::now() + options_.operation_timeout;
  const bool settled = !device_batches_ || device_batches_->settle(deadline);
  const std::vector<int> late = devices_.settle(deadline);
  if (settled && late.empty()) return;
  log_.write(LogLevel::Error, Devices::describe_late(late, options_.operation_timeout));
}

void Engine::use(std::shared_ptr<ForeignClass> backend) {
  foreign_ = std::make_unique<ForeignBackends>(std::move(backend), executor_.jobs());
  peers_.use([this](Members members) { return foreign_->open(std::move(members)); });
}

/// What is open is closed; nothing of the other language runs afterwards, unless it is stuck.
void Engine::end_foreign() {
  if (!foreign_) return;
  foreign_->close();
  const bool settled = foreign_->settle(kForeignGrace);
  if (executor_.stop(kForeignGrace) && settled) return;
  left_behind_.store(true, std::memory_order_relaxed);
  log_.write(LogLevel::Error, foreign_->describe_stuck());
}

Result<void> Engine::open_parts() {
  if (opened_) return {};
  progress_lock.nobody_else();
  if (auto opened = peers_.open(); !opened) return opened;
  fork_guard_.cover(peers_.descriptors());
  if (peers_.heap() != nullptr) {
    // Nothing is given back to the heap: models come and go with tensors of the same sizes.
    shared_pool_ = std::make_shared<HostPool>(std::numeric_limits<std::size_t>::max(),
                                              std::make_unique<SharedMemory>(peers_.heap()));
  }
  if (auto opened = negotiation_.open(options_.groups, options_.hosts, options_.rank,
                                      options_.negotiator, &timeline_);
      !opened) {
    return opened;
  }
  device_batches_.emplace(options_.devices, log_);
  dispatcher_.emplace(
      peers_.backend(),
      [this](const SetChange& added) FARANDOLE_REQUIRES(progress_lock) {
        auto backend = peers_.backend_factory().open(added.ranks, added.channel);
        if (backend && fast_path_) fast_path_->open(added, opened_);
        return backend;
      },
      options_.operation_timeout, &timeline_, &*device_batches_);
  wire();
  for (const SetChange& set : negotiation_.sets()) {
    if (set.id == 0) {
      if (fast_path_) fast_path_->open(set, false);
    } else if (auto opened = dispatcher_->open(set); !opened) {
      return opened;
    }
  }
  opened_ = true;
  return {};
}

/// Who works with whom.
void Engine::wire() {
  loop_.emplace(ControlLoop::Parts{log_, timeline_, peers_, phase_, negotiation_, submissions_,
                                   handles_, *dispatcher_, foreign_.get()},
                FailureDetector::Options{.heartbeat = options_.heartbeat,
                                         .operation_timeout = options_.operation_timeout});
  if (peers_.may_propose()) {
    fast_path_.emplace(FastPath::Parts{peers_, phase_, timeline_, negotiation_, submissions_,
                                       handles_, *dispatcher_, loop_->detector(),
                                       loop_->progress()});
    loop_->use(&*fast_path_);
    negotiation_.use(&*fast_path_);
  }
  calls_.use(loop_->progress(), fast_path_ ? &*fast_path_ : nullptr);
}

Result<void> Engine::start() {
  const Lock lifecycle(lifecycle_);
  if (auto opened = open_parts(); !opened) return opened;
  if (!options_.timeline.empty()) {
    timeline_.start(options_.timeline, options_.timeline_mark_cycles);
  }
  loop_->detector().start(Clock::now());
  started_ = true;
  if (foreign_) executor_.start([this] { loop_->progress().alert(); });
  if (options_.size == 1) return {};  // the calling threads do it all
  return thread_.start(loop_->progress(), options_.thread_affinity, log_);
}

int Engine::wanted_bell() const noexcept {
  return peers_.late_connections() == nullptr ? -1 : peers_.late_connections()->bell();
}

std::vector<Rank> Engine::wanted_connections() {
  if (in_child() || peers_.late_connections() == nullptr) return {};
  return peers_.late_connections()->asked();
}

void Engine::bring(LateConnections::Arrival arrival) {
  if (in_child() || peers_.late_connections() == nullptr) return;
  for (const Fd& stream : arrival.streams) fork_guard_.cover_also(stream.get());
  peers_.late_connections()->bring(std::move(arrival));
  loop_->progress().alert();
}

Result<Handle> Engine::submit(Submission&& submission) {
  if (in_child()) return ForkGuard::refusal();
  if (auto fine = prepare(submission, devices_); !fine) return std::move(fine).error();
  if (submission.mode == Mode::Callback) graphs_.store(true, std::memory_order_relaxed);
  return calls_.submit(submission);
}

void Engine::shutdown(wire::Departure why) {
  if (in_child()) return;
  const Lock lifecycle(lifecycle_);
  if (!started_) return;
  started_ = false;
  if (!phase_.failed.load()) loop_->leave(std::move(why), options_.operation_timeout);
  thread_.stop();
  loop_->end();
  end_foreign();
  notifier_.stop();
  timeline_.stop();
  dispatcher_->log_paths(log_);
}

std::map<std::string, PathCount, std::less<>> Engine::paths() const {
  if (!dispatcher_) return {};
  auto paths = dispatcher_->paths();
  if (fast_path_) fast_path_->count(paths);
  return paths;
}

}  // namespace farandole

/// From start to shutdown. The other parts of the engine: what users submit
/// (engine_submissions.cpp), what became of it (engine_handles.cpp), changes of process sets
/// (engine_sets.cpp), the work (engine_driver.cpp), and when it breaks off (engine_losses.cpp).

#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>

#include <system_error>

#include "engine/execution/shared_memory.h"

namespace rueda {

namespace {

using std::chrono::seconds;

/// Enough for what is gathered again and again; little beside the tensors of whoever needs so much.
constexpr std::size_t kKeptOutputBytes = std::size_t{256} << 20;
constexpr auto kCloseGrace = seconds(1);
/// For a foreign backend to close its sets, or to notice that it was told to give up.
constexpr auto kForeignGrace = seconds(5);

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      log_(options_.rank, options_.log_level, options_.log_hide_time),
      timeline_(options_.rank, options_.negotiator.cycle, log_),
      peers_(options_.rank, options_.size, options_.groups, options_.hosts),
      pool_(std::make_shared<HostPool>(kKeptOutputBytes)),
      last_handle_(options_.first_handle),
      next_tick_ns_(kNever) {}

Engine::~Engine() {
  if (in_child()) {  // threads did not survive the fork, and nobody may hear from the child
    if (thread_.joinable()) thread_.detach();
    notifier_.abandon();
    executor_.abandon();
    timeline_.abandon();
    return;
  }
  shutdown();
  pool_->close();  // results of this world may live on, and would keep it
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
  log_.write(LogLevel::Error,
             std::string(foreign_->name()) +
                 " is stuck: a verb has not come to its end, also after abort(). It is left "
                 "behind, and may still write to the tensors it was given; end the process");
}

Result<void> Engine::open() {
  const std::lock_guard lifecycle(lifecycle_);
  return open_parts();
}

/// With lifecycle_ held.
Result<void> Engine::open_parts() {
  if (opened_) return {};
  if (auto opened = peers_.open(); !opened) return opened;
  fork_guard_.cover(peers_.descriptors());
  if (peers_.heap() != nullptr) {
    // Nothing is given back to the heap: models come and go with tensors of the same sizes.
    shared_pool_ = std::make_shared<HostPool>(std::numeric_limits<std::size_t>::max(),
                                              std::make_unique<SharedMemory>(peers_.heap()));
  }
  negotiator_ = std::make_unique<Negotiator>(options_.groups, options_.hosts, options_.rank,
                                             options_.negotiator, &timeline_);
  auto opened = open_sets();
  FailureDetector::Owner& owner = *this;
  detector_ = std::make_unique<FailureDetector>(
      FailureDetector::Options{.heartbeat = options_.heartbeat,
                               .operation_timeout = options_.operation_timeout},
      peers_, phase_, log_, *dispatcher_, owner);
  opened_ = static_cast<bool>(opened);
  return opened;
}

Result<void> Engine::start() {
  const std::lock_guard lifecycle(lifecycle_);
  if (auto opened = open_parts(); !opened) return opened;
  if (!options_.timeline.empty()) {
    timeline_.start(options_.timeline, options_.timeline_mark_cycles);
  }
  detector_->start(Clock::now());
  Driver& driver = *this;
  progress_ =
      std::make_unique<Progress>(driver, peers_.bell(), peers_.engine_bell(), peers_.waiter_bell());
  started_ = true;
  if (foreign_) executor_.start([this] { progress_->alert(); });
  if (options_.size == 1) return {};  // the calling threads do it all
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { progress_->run(stop); });
  } catch (const std::system_error& error) {
    return Error::system("The engine cannot start its thread (limited by `ulimit -u` or `-v`?)",
                         error.code().value());
  }
  ::pthread_setname_np(thread_.native_handle(), "rueda-engine");
  if (options_.thread_affinity >= 0) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<std::size_t>(options_.thread_affinity), &cores);
    if (::pthread_setaffinity_np(thread_.native_handle(), sizeof cores, &cores) != 0) {
      log_.write(LogLevel::Error, "HOROVOD_THREAD_AFFINITY: cannot pin the engine thread to core " +
                                      std::to_string(options_.thread_affinity));
    }
  }
  return {};
}

std::optional<Error> Engine::failure() const {
  const std::lock_guard lock(mutex_);
  if (failed_) return failed_->code == Code::Shutdown ? std::nullopt : failed_;
  return negotiator_ ? negotiator_->departure() : std::nullopt;
}

void Engine::shutdown(wire::Departure why) {
  if (in_child()) return;
  const std::lock_guard lifecycle(lifecycle_);
  if (!started_) return;
  started_ = false;
  if (!phase_.failed.load()) {
    {
      const std::lock_guard lock(mutex_);
      negotiator_->shutdown(Clock::now(), effects_, std::move(why));
      if (Offers* offers = peers_.offers()) offers->close();
      effects_pending_.store(true, std::memory_order_seq_cst);
    }
    if (options_.size > 1) progress_->alert_holder();
    const auto over = [this] { return phase_.closed.load() || phase_.failed.load(); };
    const auto finished = [&] { return over() || phase_.acknowledged.load(); };
    // A batch that was decided may still run; stuck ones end by the operation's own time limit.
    progress_->until([&] { return over() || phase_.ended.load(); },
                     Clock::now() + options_.operation_timeout + seconds(1));
    progress_->until(finished, Clock::now() + options_.operation_timeout + seconds(1));
    progress_->until(over, Clock::now() + kCloseGrace);
  }
  if (thread_.joinable()) {
    thread_.request_stop();
    progress_->stop();
    thread_.join();
  }
  if (phase_.acknowledged.load()) phase_.closed.store(true);
  {  // Another thread of the user may still drive: whoever holds the baton ends it.
    const std::lock_guard lock(mutex_);
    effects_.fatal = Error{.code = Code::Shutdown, .message = "Horovod has been shut down"};
    effects_pending_.store(true, std::memory_order_seq_cst);
  }
  if (options_.size > 1) progress_->alert_holder();
  progress_->until([this] { return phase_.failed.load(); }, TimePoint::max());
  end_foreign();
  notifier_.stop();
  timeline_.stop();
  if (log_.on(LogLevel::Info)) {
    for (const auto& [path, count] : dispatcher_->paths()) {
      log_.write(LogLevel::Info, "data path " + path + ": " + std::to_string(count.operations) +
                                     " batches, " + std::to_string(count.bytes) + " bytes");
    }
  }
}

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  if (!in_child()) timeline_.start(path, mark_cycles);
}

void Engine::stop_timeline() {
  if (!in_child()) timeline_.stop();
}

std::map<std::string, PathCount, std::less<>> Engine::paths() const {
  if (!dispatcher_) return {};
  auto paths = dispatcher_->paths();
  const std::lock_guard lock(mutex_);
  if (offers_run_.operations != 0) {
    const char* const way = options_.groups.size() > 1 ? "tcp.offer" : "shm.offer";
    PathCount& count = paths[options_.size == 1 ? "local" : way];
    count.operations += offers_run_.operations;
    count.bytes += offers_run_.bytes;
  }
  return paths;
}

}  // namespace rueda

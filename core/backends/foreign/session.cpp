#include "backends/foreign/session.h"

#include <thread>

namespace farandole {

namespace {

using std::chrono::seconds;

/// After abort(): how long a verb may take to notice. Meanwhile nobody makes progress here, but by
/// then the world has ended and everybody knows why.
constexpr auto kAbortPatience = seconds(2);

/// Index of the queue of a transfer; none for what is not one.
std::optional<std::size_t> queue_of(const ForeignCall& call) {
  if (call.verb == ForeignVerb::Send) return 2 * static_cast<std::size_t>(call.peer);
  if (call.verb == ForeignVerb::Recv) return 2 * static_cast<std::size_t>(call.peer) + 1;
  return std::nullopt;
}

/// Looks whether a job is done.
class ForeignOperation final : public Operation {
 public:
  ForeignOperation(std::shared_ptr<ForeignSession> session, std::shared_ptr<ForeignJob> job,
                   std::vector<Rank> waiting_for)
      : session_(std::move(session)), job_(std::move(job)), waiting_for_(std::move(waiting_for)) {}
  ~ForeignOperation() override {
    if (!job_->done.load(std::memory_order_acquire)) session_->drop(*job_);
  }

  Result<Step> step() override {
    if (job_->done.load(std::memory_order_acquire)) {
      if (job_->error) return *job_->error;
      return Step::Done;
    }
    const auto moves = job_->moves.load(std::memory_order_relaxed);
    return std::exchange(seen_, moves) == moves ? Step::Blocked : Step::Advanced;
  }
  std::vector<Rank> waiting_for() const override { return waiting_for_; }

 private:
  std::shared_ptr<ForeignSession> session_;
  std::shared_ptr<ForeignJob> job_;
  std::vector<Rank> waiting_for_;
  std::uint32_t seen_ = 0;
};

}  // namespace

void Aborts::start(std::shared_ptr<Foreign> object) {
  {
    const Lock lock(mutex_);
    ++under_way_;
  }
  std::thread([self = shared_from_this(), object = std::move(object)]() mutable {
    object->abort();
    object.reset();  // it may be the last: before anybody hears that the thread needs nothing more
    const Lock lock(self->mutex_);
    --self->under_way_;
    self->ended_.notify_all();
  }).detach();
}

bool Aborts::settle(Duration patience) {
  Lock lock(mutex_);
  return ended_.wait_for(lock, patience,
                         [this]() FARANDOLE_REQUIRES(mutex_) { return under_way_ == 0; });
}

ForeignSession::ForeignSession(std::shared_ptr<ForeignClass> kind, Members members,
                               std::shared_ptr<Blocking> executor, std::shared_ptr<Aborts> aborts)
    : kind_(std::move(kind)),
      members_(std::move(members)),
      executor_(std::move(executor)),
      aborts_(std::move(aborts)),
      turns_(2 * members_.ranks.size()),
      served_(2 * members_.ranks.size()) {}

void ForeignSession::open() {
  executor_->post([self = shared_from_this()] {
    {
      const Lock lock(self->mutex_);
      if (self->aborted_) return Step::Done;
    }
    auto object = self->kind_->open(self->members_);
    const Lock lock(self->mutex_);
    if (object) {
      self->object_ = std::move(*object);
      if (self->aborted_) self->aborts_->start(self->object_);  // meanwhile
    } else {
      self->failed_ = self->failure(std::move(object).error(), "opening a process set");
    }
    return Step::Done;
  });
}

void ForeignSession::close() {
  {
    const Lock lock(mutex_);
    if (std::exchange(closing_, true)) return;
  }
  executor_->post([self = shared_from_this()] {
    std::shared_ptr<Foreign> object;
    bool orderly = false;
    {
      const Lock lock(self->mutex_);
      object = std::move(self->object_);
      orderly = !self->failed_ && !self->aborted_;
    }
    // What fails now fails nobody: all operations of the set are over.
    if (object && orderly) [[maybe_unused]]
      const auto closed = object->close();
    return Step::Done;
  });
}

void ForeignSession::abort() {
  std::shared_ptr<Foreign> object;
  {
    const Lock lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    object = object_;
  }
  if (object) aborts_->start(std::move(object));
}

std::unique_ptr<Operation> ForeignSession::start(std::shared_ptr<ForeignJob> job,
                                                 std::vector<Rank> waiting_for) {
  if (const auto queue = queue_of(job->call)) job->turn = turns_[*queue]++;
  executor_->post([self = shared_from_this(), job] { return self->run(*job); });
  return std::make_unique<ForeignOperation>(shared_from_this(), std::move(job),
                                            std::move(waiting_for));
}

void ForeignSession::drop(ForeignJob& job) {
  job.dropped.store(true, std::memory_order_seq_cst);
  abort();
  executor_->post([] { return Step::Done; });  // it may nap
  Lock lock(mutex_);
  if (stuck_) return;
  stuck_ = !finished_.wait_for(lock, kAbortPatience, [&job] { return job.done.load(); });
}

bool ForeignSession::stuck() {
  const Lock lock(mutex_);
  return stuck_;
}

std::shared_ptr<std::byte[]> ForeignSession::staging(std::size_t bytes) {
  if (bytes > staging_bytes_ || staging_ == nullptr) {
    staging_ = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    staging_bytes_ = bytes;
  }
  return staging_;
}

Step ForeignSession::run(ForeignJob& job) {
  if (job.dropped.load(std::memory_order_seq_cst)) {
    job.running.reset();  // before anybody hears that it is done
    finish(job, Error{.code = Code::Backend, .message = "given up"});
    return Step::Done;
  }
  auto step = advance(job);
  if (!step) {
    job.running.reset();
    finish(job, std::move(step).error());
    return Step::Done;
  }
  if (*step == Step::Done) {
    job.running.reset();
    if (job.after && !job.dropped.load(std::memory_order_seq_cst)) job.after();
    if (const auto queue = queue_of(job.call)) ++served_[*queue];
    finish(job, std::nullopt);
  } else if (*step == Step::Advanced) {
    job.moves.fetch_add(1, std::memory_order_relaxed);
  }
  return *step;
}

Result<Step> ForeignSession::advance(ForeignJob& job) {
  if (!job.running) {
    const auto object = this->object();
    if (!object) {
      const Lock lock(mutex_);
      if (failed_) return *failed_;
      return Error{.code = Code::Backend, .message = std::string(kind_->name()) + " is closed"};
    }
    // One transfer after another between two ranks in each direction, as on a wire.
    if (const auto queue = queue_of(job.call); queue && served_[*queue] != job.turn) {
      return Step::Blocked;
    }
    if (job.before) job.before();
    job.running = object->call(job.call);
  }
  auto step = job.running->step();
  if (!step) return failure(std::move(step).error(), name_of(job.call.verb));
  return *step;
}

void ForeignSession::finish(ForeignJob& job, std::optional<Error> error) {
  {
    const Lock lock(mutex_);
    if (error && !failed_) failed_ = error;
    job.error = std::move(error);
    job.done.store(true, std::memory_order_release);
  }
  finished_.notify_all();
  executor_->completed();
}

/// Says whose fault it is: "MpiBackend failed in allreduce on rank 3: …".
Error ForeignSession::failure(Error error, std::string_view doing) const {
  const Rank me = members_.ranks[static_cast<std::size_t>(members_.self)];
  error.message = std::string(kind_->name()) + " failed on rank " + std::to_string(me) + " in " +
                  std::string(doing) + ": " + error.message;
  error.code = Code::Backend;
  if (error.peer < 0) error.peer = me;
  return error;
}

std::shared_ptr<Foreign> ForeignSession::object() {
  const Lock lock(mutex_);
  return failed_ || aborted_ ? nullptr : object_;
}

}  // namespace farandole

#include "engine/execution/executor.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <new>
#include <thread>
#include <utility>

#include "engine/base/spin_wait.h"
#include "mutex.h"

namespace farandole {

namespace {

using std::chrono::microseconds;

/// Between two looks at jobs that wait for other ranks. Such jobs are polled, as what they wait for
/// (a library of somebody else) has no bell: the longer nothing has come, the longer the naps, so
/// that they add no more than an eighth.
constexpr auto kShortestNap = microseconds(20);
constexpr auto kLongestNap = microseconds(1000);
constexpr int kPart = 8;

}  // namespace

class Executor::Queue final : public Blocking {
 public:
  void post(std::function<Step()> job) override {
    {
      const Lock lock(mutex_);
      posted_.push_back(std::move(job));
    }
    changed_.notify_all();
  }

  void completed() override {
    const Lock lock(completed_mutex_);
    if (on_completed_) on_completed_();
  }

  void start(const std::shared_ptr<Queue>& self, std::function<void()> on_completed) {
    {
      const Lock lock(completed_mutex_);
      on_completed_ = std::move(on_completed);
    }
    thread_ = std::thread([self] { self->run(); });
    ::pthread_setname_np(thread_.native_handle(), "hvd-executor");
  }

  bool stop(Duration patience) {
    if (!thread_.joinable()) {
      std::deque<std::function<Step()>> never_run;  // ends without the lock: it may hold this queue
      const Lock lock(mutex_);
      never_run.swap(posted_);
      return true;
    }
    Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    const bool ended =
        changed_.wait_for(lock, patience, [this]() FARANDOLE_REQUIRES(mutex_) { return ended_; });
    lock.unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
    const Lock completed_lock(completed_mutex_);
    on_completed_ = nullptr;
    return ended;
  }

  void abandon() noexcept {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  void run() {
    std::list<std::function<Step()>> jobs;  // that have begun, or are about to
    SpinWait awake(0);
    auto idle_since = Clock::now();
    for (;;) {
      {
        Lock lock(mutex_);
        if (jobs.empty()) {
          changed_.wait(
              lock, [this]() FARANDOLE_REQUIRES(mutex_) { return !posted_.empty() || stopping_; });
          if (posted_.empty()) break;
        }
        for (auto& job : posted_) jobs.push_back(std::move(job));
        posted_.clear();
      }
      bool moved = false;
      for (auto job = jobs.begin(); job != jobs.end();) {
        const Step step = (*job)();
        moved |= step != Step::Blocked;
        job = step == Step::Done ? jobs.erase(job) : std::next(job);
      }
      if (moved) {
        awake.reset();
        idle_since = Clock::now();
      } else if (!awake.wait()) {
        const Duration nap = (Clock::now() - idle_since) / kPart;
        Lock lock(mutex_);
        changed_.wait_for(lock, std::clamp<Duration>(nap, kShortestNap, kLongestNap),
                          [this]() FARANDOLE_REQUIRES(mutex_) { return !posted_.empty(); });
      }
    }
    const Lock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  std::thread thread_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<Step()>> posted_ FARANDOLE_GUARDED_BY(mutex_);
  bool stopping_ FARANDOLE_GUARDED_BY(mutex_) = false;
  bool ended_ FARANDOLE_GUARDED_BY(mutex_) = false;
  Mutex completed_mutex_;  // held while the function runs
  std::function<void()> on_completed_ FARANDOLE_GUARDED_BY(completed_mutex_);
};

Executor::Executor() : queue_(std::make_shared<Queue>()) {}

Executor::~Executor() { stop(Duration::zero()); }

std::shared_ptr<Blocking> Executor::jobs() const { return queue_; }

void Executor::start(std::function<void()> completed) {
  queue_->start(queue_, std::move(completed));
}

bool Executor::stop(Duration patience) { return queue_->stop(patience); }

void Executor::abandon() noexcept { queue_->abandon(); }

}  // namespace farandole

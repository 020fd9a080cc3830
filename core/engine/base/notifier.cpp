#include "engine/base/notifier.h"

#include <utility>

namespace farandole {

void Notifier::post(std::function<void()> callback) {
  {
    const Lock lock(mutex_);
    if (!stopped_) {
      queue_.push_back(std::move(callback));
      if (!created_) {
        created_ = true;
        thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
      }
      arrived_.notify_one();
      return;
    }
  }
  callback();
}

void Notifier::run(const std::stop_token& stop) {
  Lock lock(mutex_);
  while (
      arrived_.wait(lock, stop, [this]() FARANDOLE_REQUIRES(mutex_) { return !queue_.empty(); })) {
    auto callback = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();  // a callback may submit, and so post
    callback();
    lock.lock();
  }
}

void Notifier::stop() {
  std::jthread thread;
  {
    const Lock lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) {
    thread.request_stop();
    thread.join();  // it leaves an empty queue behind
  }
  std::deque<std::function<void()>> left;  // of others, since
  {
    const Lock lock(mutex_);
    stopped_ = true;
    left.swap(queue_);
  }
  for (auto& callback : left) callback();
}

void Notifier::abandon() noexcept {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace farandole

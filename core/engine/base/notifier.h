/// Runs completion callbacks on a thread of its own, because a framework's continuation may take
/// long and may submit the next operation, while the engine must go on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

#include "mutex.h"

namespace farandole {

class Notifier {
 public:
  Notifier() = default;
  ~Notifier() { stop(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  /// Queues a callback; the first one creates the thread. After stop() callbacks run at once.
  void post(std::function<void()> callback);
  /// Runs what is queued and joins the thread. Not from a callback.
  void stop();
  /// Forgets the thread, which does not exist in a forked child: nor does another one.
  void abandon() noexcept FARANDOLE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  void run(const std::stop_token& stop);

  Mutex mutex_;
  std::condition_variable_any arrived_;
  std::deque<std::function<void()>> queue_ FARANDOLE_GUARDED_BY(mutex_);
  bool created_ FARANDOLE_GUARDED_BY(mutex_) = false;
  bool stopped_ FARANDOLE_GUARDED_BY(mutex_) = false;
  std::jthread thread_ FARANDOLE_GUARDED_BY(mutex_);
};

}  // namespace farandole

/// The engine lock: the one lock that submitting threads share with the holder of the progress
/// lock.
#pragma once

#include <atomic>
#include <cassert>
#include <mutex>
#include <thread>

namespace farandole {

/// It guards what is submitted (Submissions), decided (Negotiation) and proposed (FastPath),
/// because these change together: a submission of another thread comes before a proposal or after
/// its outcome, never between. Whoever needs both locks takes the progress lock first.
///
/// Every submission takes it, so its holder neither waits nor calls user code. It is held longest
/// on the fast path, where data move under it: 64 KiB are copied at most when an operation is
/// proposed, and contributions of 256 KiB in all are reduced when it is agreed.
class EngineLock {
 public:
  void lock() {
    mutex_.lock();
    note(std::this_thread::get_id());
  }
  void unlock() {
    note({});
    mutex_.unlock();
  }
  bool try_lock() {
    const bool taken = mutex_.try_lock();
    if (taken) note(std::this_thread::get_id());
    return taken;
  }
  /// Builds with assertions end the process if the calling thread does not hold the lock.
  void assert_held() const noexcept {
    assert(holder_.load(std::memory_order_relaxed) == std::this_thread::get_id());
  }

 private:
#ifdef NDEBUG
  void note(std::thread::id /*holder*/) noexcept {}
#else
  void note(std::thread::id holder) noexcept { holder_.store(holder, std::memory_order_relaxed); }
  std::atomic<std::thread::id> holder_{};
#endif
  std::mutex mutex_;
};

}  // namespace farandole

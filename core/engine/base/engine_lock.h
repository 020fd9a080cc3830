/// The two locks of an engine: their names for annotations, and the engine lock itself.
#pragma once

#include "mutex.h"

namespace farandole {

/// What annotations call a lock of the engine. Its parts reach the same lock by references of their
/// own, and the compiler does not know that they are the same: so each lock has one name, for all
/// engines of a process.
struct FARANDOLE_CAPABILITY("lock") LockName {
  /// The compiler takes it for held from here on: no other thread knows of what it guards.
  void nobody_else() const noexcept FARANDOLE_ASSERTS() {}
};
inline constexpr LockName engine_lock;
/// See Progress. Whoever needs both takes this one first.
inline constexpr LockName progress_lock;

/// The lock that submitting threads share with the holder of the progress lock.
///
/// It guards what is submitted (Submissions), decided (Negotiation) and proposed (FastPath),
/// because these change together: a submission of another thread comes before a proposal or after
/// its outcome, never between.
///
/// Every submission takes it, so its holder neither waits nor calls user code. It is held longest
/// on the fast path, where data move under it: 64 KiB are copied at most when an operation is
/// proposed, and contributions of 256 KiB in all are reduced when it is agreed.
class EngineLock {
 public:
  /// Holds it to the end of the block.
  class FARANDOLE_SCOPED_CAPABILITY Guard {
   public:
    explicit Guard(EngineLock& lock) FARANDOLE_ACQUIRE(engine_lock) : lock_(lock.mutex_) {}
    ~Guard() FARANDOLE_RELEASE() {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::lock_guard<std::mutex> lock_;
  };

 private:
  std::mutex mutex_;
};

}  // namespace farandole

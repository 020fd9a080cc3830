#include "engine/base/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "mutex.h"
#include "transport/shm_segment.h"

namespace farandole {

/// The list that the handlers visit. The lock is held during fork(), so that the child sees a
/// consistent list.
struct ForkGuards {
  Mutex mutex;
  std::vector<ForkGuard*> live FARANDOLE_GUARDED_BY(mutex);

  static ForkGuards& instance() {
    static ForkGuards* guards = [] {
      auto* made = new ForkGuards;  // never destroyed: fork() may come at any time
      ::pthread_atfork(before, in_parent, in_child);
      return made;
    }();
    return *guards;
  }

  // The lock is taken in one handler and given back in another.
  static void before() FARANDOLE_NO_THREAD_SAFETY_ANALYSIS { instance().mutex.lock(); }
  static void in_parent() FARANDOLE_NO_THREAD_SAFETY_ANALYSIS { instance().mutex.unlock(); }
  static void in_child() FARANDOLE_NO_THREAD_SAFETY_ANALYSIS { instance().disable(); }

  void disable() FARANDOLE_RELEASE(mutex) {  // only async-signal-safe calls from here on
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (ForkGuard* guard : live) {
      guard->in_child_.store(true, std::memory_order_relaxed);
      if (guard->heap_ != nullptr) guard->heap_->leave_to_parent();
      for (const int fd : guard->descriptors_) {
        if (null >= 0) ::dup3(null, fd, O_CLOEXEC);
      }
    }
    if (null >= 0) ::close(null);
    mutex.unlock();
  }
};

ForkGuard::ForkGuard() {
  auto& guards = ForkGuards::instance();
  const Lock lock(guards.mutex);
  guards.live.push_back(this);
}

ForkGuard::~ForkGuard() {
  auto& guards = ForkGuards::instance();
  const Lock lock(guards.mutex);
  std::erase(guards.live, this);
}

Error ForkGuard::refusal() {
  return {.code = Code::Internal,
          .message =
              "this process was forked after init; the child cannot use the parent's engine: start "
              "it before init, or use the 'spawn' method"};
}

void ForkGuard::cover(std::vector<int> descriptors, ShmHeap* heap) {
  std::erase_if(descriptors, [](int fd) { return fd < 0; });
  const Lock lock(ForkGuards::instance().mutex);
  descriptors_ = std::move(descriptors);
  heap_ = heap;
}

void ForkGuard::cover_also(int descriptor) {
  if (descriptor < 0) return;
  const Lock lock(ForkGuards::instance().mutex);
  descriptors_.push_back(descriptor);
}

void ForkGuard::uncover(int descriptor) {
  const Lock lock(ForkGuards::instance().mutex);
  std::erase(descriptors_, descriptor);
}

}  // namespace farandole

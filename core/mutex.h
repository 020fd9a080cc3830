/// A mutex and its guard, and the annotations by which the compiler checks what a lock guards.
///
/// Clang refuses code that touches guarded data without the lock (-Wthread-safety; the sanitizers'
/// builds are its builds). Other compilers see nothing of the annotations. A `Lock` goes with
/// std::condition_variable_any; a condition given as a lambda is annotated as a function is.
#pragma once

#include <mutex>

#if defined(__clang__)
#define FARANDOLE_ANNOTATION(text) __attribute__((text))
#else
#define FARANDOLE_ANNOTATION(text)
#endif

/// A class of locks; `name` is what the compiler calls them.
#define FARANDOLE_CAPABILITY(name) FARANDOLE_ANNOTATION(capability(name))
/// A class whose objects hold a lock as long as they live.
#define FARANDOLE_SCOPED_CAPABILITY FARANDOLE_ANNOTATION(scoped_lockable)
/// A variable that is read and written with the lock held.
#define FARANDOLE_GUARDED_BY(lock) FARANDOLE_ANNOTATION(guarded_by(lock))
/// A function whose caller holds the locks ...
#define FARANDOLE_REQUIRES(...) FARANDOLE_ANNOTATION(requires_capability(__VA_ARGS__))
/// ... or must not hold them, because the function takes them.
#define FARANDOLE_EXCLUDES(...) FARANDOLE_ANNOTATION(locks_excluded(__VA_ARGS__))
/// A function that returns with the locks held; without arguments: the object itself.
#define FARANDOLE_ACQUIRE(...) FARANDOLE_ANNOTATION(acquire_capability(__VA_ARGS__))
/// The same if it returns the first argument, true or false.
#define FARANDOLE_TRY_ACQUIRE(...) FARANDOLE_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define FARANDOLE_RELEASE(...) FARANDOLE_ANNOTATION(release_capability(__VA_ARGS__))
/// A function after which the compiler takes the locks for held: nobody else can be there.
#define FARANDOLE_ASSERTS(...) FARANDOLE_ANNOTATION(assert_capability(__VA_ARGS__))
/// A function that the analysis cannot follow. A comment beside it says why it is right.
#define FARANDOLE_NO_THREAD_SAFETY_ANALYSIS FARANDOLE_ANNOTATION(no_thread_safety_analysis)

namespace farandole {

/// std::mutex, known to the analysis.
class FARANDOLE_CAPABILITY("mutex") Mutex {
 public:
  void lock() FARANDOLE_ACQUIRE() { mutex_.lock(); }
  void unlock() FARANDOLE_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Holds a mutex to the end of the block, or to unlock().
class FARANDOLE_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) FARANDOLE_ACQUIRE(mutex) : lock_(mutex) {}
  ~Lock() FARANDOLE_RELEASE() {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  void lock() FARANDOLE_ACQUIRE() { lock_.lock(); }
  void unlock() FARANDOLE_RELEASE() { lock_.unlock(); }

 private:
  std::unique_lock<Mutex> lock_;
};

}  // namespace farandole

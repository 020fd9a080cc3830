/// Disables an engine in a forked child. Its descriptors must not stay open there, or peers and the
/// kernel would take the child for the rank, and nobody may use it.
///
/// Process-wide state: a handler registered once with pthread_atfork, and the list of live guards
/// that it visits.
#pragma once

#include <atomic>
#include <vector>

#include "result.h"

namespace farandole {

class ShmHeap;

class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  /// In a forked child these descriptors become /dev/null: peers see them closed, and their owners
  /// can still close them by number. `heap` (or null) stays with the parent.
  void cover(std::vector<int> descriptors, ShmHeap* heap = nullptr);
  /// The same for one more, until uncover(), which comes before it is closed.
  void cover_also(int descriptor);
  void uncover(int descriptor);
  /// True in a child that was forked after this guard was made.
  [[nodiscard]] bool in_child() const noexcept { return in_child_.load(std::memory_order_relaxed); }
  /// The error of every call in a forked child.
  [[nodiscard]] static Error refusal();

 private:
  friend struct ForkGuards;
  std::vector<int> descriptors_;
  ShmHeap* heap_ = nullptr;
  std::atomic<bool> in_child_{false};
};

}  // namespace farandole

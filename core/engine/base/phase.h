/// The phases of an engine's life.
#pragma once

#include <atomic>

namespace farandole {

/// Each flag is set once and never cleared. They are set in this order, except for `failed`, which
/// may come at any time. Any thread.
struct Phase {
  std::atomic<bool> ended{false};         ///< the shutdown entry was reached
  std::atomic<bool> acknowledged{false};  ///< this rank has finished everything before that entry
  std::atomic<bool> closed{false};        ///< all ranks acknowledged it
  std::atomic<bool> failed{false};        ///< the world has failed: nothing runs any more

  [[nodiscard]] bool has_failed() const noexcept { return failed.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_ended() const noexcept { return ended.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_closed() const noexcept { return closed.load(std::memory_order_relaxed); }
  /// True if the world has shut down or failed: then losses of ranks are ignored.
  [[nodiscard]] bool quiet() const noexcept { return has_failed() || has_closed(); }
};

}  // namespace farandole

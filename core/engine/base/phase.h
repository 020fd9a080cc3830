/// How far an engine has come.
#pragma once

#include <atomic>

namespace rueda {

/// Each flag is raised once, in this order except for `failed`, which may come at any time. Any
/// thread.
struct Phase {
  std::atomic<bool> ended{false};         ///< the shutdown entry was reached
  std::atomic<bool> acknowledged{false};  ///< this rank has finished what came before it
  std::atomic<bool> closed{false};        ///< all ranks acknowledged it
  std::atomic<bool> failed{false};        ///< nothing runs any more

  [[nodiscard]] bool has_failed() const noexcept { return failed.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_ended() const noexcept { return ended.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_closed() const noexcept { return closed.load(std::memory_order_relaxed); }
  /// Shut down or failed: losses mean nothing any more.
  [[nodiscard]] bool quiet() const noexcept { return has_failed() || has_closed(); }
};

}  // namespace rueda

/// The thread of an engine that drives when no user thread waits.
#pragma once

#include <thread>

#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "result.h"

namespace farandole {

class EngineThread {
 public:
  /// `progress` outlives it. `core`: the only one that it runs on; negative: any. A core that it
  /// cannot have is a line in the log. Fails if the system has no thread left.
  Result<void> start(Progress& progress, int core, Log& log);
  /// Joins it. Idempotent.
  void stop();
  /// In a forked child the thread does not exist: forget it.
  void abandon() noexcept;

 private:
  Progress* progress_ = nullptr;
  std::jthread thread_;
};

}  // namespace farandole

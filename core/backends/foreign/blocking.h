/// The thread that runs code which may block, as backends see it.
#pragma once

#include <functional>

#include "backends/operation.h"

namespace farandole {

/// Any thread may call. Outlives whoever holds it.
class Blocking {
 public:
  virtual ~Blocking() = default;
  /// A job is called repeatedly until it returns Done. Jobs begin in the order in which they were
  /// posted; several may be Blocked at the same time. Jobs do not throw.
  virtual void post(std::function<Step()> job) = 0;
  /// Something that the engine waits for has happened.
  virtual void completed() = 0;
};

}  // namespace farandole

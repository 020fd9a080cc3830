/// The thread on which code runs that may block, as backends see it.
#pragma once

#include <functional>

#include "backends/operation.h"

namespace rueda {

/// Any thread may call. Outlives whoever holds it.
class Blocking {
 public:
  virtual ~Blocking() = default;
  /// A job is called again and again until it says Done. Jobs begin in the order in which they were
  /// posted; those that are Blocked wait beside each other. None of them throws.
  virtual void post(std::function<Step()> job) = 0;
  /// Something that the engine waits for has happened.
  virtual void completed() = 0;
};

}  // namespace rueda

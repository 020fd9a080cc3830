/// One thread for code that may block: backends that are written in another language.
///
/// It never touches the engine, and nobody who makes progress ever waits for it: a job that is
/// stuck stops nothing but itself.
#pragma once

#include <functional>
#include <memory>

#include "backends/foreign_backends.h"
#include "types.h"

namespace farandole {

class Executor {
 public:
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Where jobs are posted, also before start() and after stop(): those are never run.
  [[nodiscard]] std::shared_ptr<Blocking> jobs() const;
  /// `completed`: see Blocking; called by the thread of the executor until stop() returns.
  void start(std::function<void()> completed);
  /// Runs what has been posted, joins the thread. False: it did not come to its end in time, and is
  /// left behind with what it uses. Idempotent.
  bool stop(Duration patience);
  /// In a forked child the thread does not exist: forget it.
  void abandon() noexcept;

 private:
  class Queue;
  std::shared_ptr<Queue> queue_;  // the thread holds it too
};

}  // namespace farandole

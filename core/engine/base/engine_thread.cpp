#include "engine/base/engine_thread.h"

#include <pthread.h>
#include <sched.h>

#include <string>
#include <system_error>

namespace farandole {

namespace {

bool pin(std::jthread& thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  return ::pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores) == 0;
}

}  // namespace

Result<void> EngineThread::start(Progress& progress, int core, Log& log) {
  progress_ = &progress;
  try {
    thread_ = std::jthread([&progress](const std::stop_token& stop) { progress.run(stop); });
  } catch (const std::system_error& error) {
    return Error::system("The engine cannot start its thread (limited by `ulimit -u` or `-v`?)",
                         error.code().value());
  }
  ::pthread_setname_np(thread_.native_handle(), "hvd-engine");
  if (core >= 0 && !pin(thread_, core)) {
    log.write(LogLevel::Error, "HOROVOD_THREAD_AFFINITY: cannot pin the engine thread to core " +
                                   std::to_string(core));
  }
  return {};
}

void EngineThread::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  progress_->stop();
  thread_.join();
}

void EngineThread::abandon() noexcept {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace farandole

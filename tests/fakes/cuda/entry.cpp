#include "cuda/entry.h"

#include <pthread.h>

#include <atomic>

namespace farandole::fakes {
namespace {

std::atomic<bool> started{false};

DriverStatus check_context() {
  const auto& stack = context_stack();
  if (stack.empty()) return kInvalidContext;
  if (!stack.back()->active()) return kContextIsDestroyed;
  return stack.back()->broken();
}

}  // namespace

void set_started() noexcept {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { started.store(false, std::memory_order_relaxed); });
  static_cast<void>(registered);
  started.store(true, std::memory_order_relaxed);
}

DriverStatus check(Function& function, Needs needs) {
  const std::uint64_t call = function.call();
  if (inside_host_function()) return kNotPermitted;
  if (needs != Needs::Nothing && !started.load(std::memory_order_relaxed)) return kNotInitialized;
  if (const auto fault = faults().find(function, call)) {
    if (breaks_context(*fault) && !context_stack().empty()) current().break_with(*fault);
    return *fault;
  }
  return needs == Needs::Context ? check_context() : kDriverSuccess;
}

Rules& faults() {
  static Rules& rules = *new Rules("FAKE_CUDA_FAIL");
  return rules;
}

bool& inside_host_function() {
  thread_local bool inside = false;
  return inside;
}

Context& current() { return *context_stack().back(); }

DriverStatus resolve_any(DriverStream handle, Stream*& stream) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value == 2) return kDriverInvalidHandle;
  if (value <= 1) {
    FAKE_CUDA_TRY(check_context());
    stream = &current().null_stream();
    return kDriverSuccess;
  }
  stream = reinterpret_cast<Stream*>(handle);
  return stream->alive() ? kDriverSuccess : kDriverInvalidHandle;
}

DriverStatus resolve(DriverStream handle, Stream*& stream) {
  FAKE_CUDA_TRY(resolve_any(handle, stream));
  if (!stream->capturing()) return kDriverSuccess;
  captured_calls().fetch_add(1, std::memory_order_relaxed);
  return kCaptureUnsupported;
}

DriverStatus resolve(DriverEvent handle, Event*& event) {
  event = reinterpret_cast<Event*>(handle);
  return event != nullptr && event->alive() ? kDriverSuccess : kDriverInvalidHandle;
}

std::atomic<std::size_t>& captured_calls() {
  static std::atomic<std::size_t> calls{0};
  return calls;
}

}  // namespace farandole::fakes

/// What every function of the driver does first.
#pragma once

#include "cuda/context.h"
#include "cuda/event.h"
#include "cuda/status.h"
#include "cuda/stream.h"
#include "faults.h"

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))
/// Of functions that callers declare with types of their own; the sanitizer would compare the
/// types.
#define FAKE_CUDA_API_ANY_TYPES FAKE_CUDA_API FAKE_ANY_TYPES

namespace farandole::fakes {

/// What must have been done before a call.
enum class Needs { Nothing, Start, Context };

/// Counts the call; not kDriverSuccess: the status that the call answers.
[[nodiscard]] DriverStatus check(Function& function, Needs needs);

template <Name name>
[[nodiscard]] DriverStatus enter(Needs needs) {
  return check(function<name>(), needs);
}

/// FAKE_CUDA_FAIL, or what fakeCudaFail made of it.
[[nodiscard]] Rules& faults();

/// Whether this thread runs a function of cuLaunchHostFunc now.
[[nodiscard]] bool& inside_host_function();

/// cuInit has succeeded in this process.
void set_started() noexcept;

/// The context on top of this thread's stack; only after check(Needs::Context).
[[nodiscard]] Context& current();

/// The stream behind a handle. Not kDriverSuccess: it was destroyed, or it captures.
[[nodiscard]] DriverStatus resolve(DriverStream handle, Stream*& stream);
/// The same, also of a stream that captures.
[[nodiscard]] DriverStatus resolve_any(DriverStream handle, Stream*& stream);
[[nodiscard]] DriverStatus resolve(DriverEvent handle, Event*& event);

/// A handle, from an object and back.
template <typename Handle, typename Object>
[[nodiscard]] Handle handle_of(Object* object) {
  return reinterpret_cast<Handle>(object);
}

/// How many calls were refused as their stream captured.
[[nodiscard]] std::atomic<std::size_t>& captured_calls();

}  // namespace farandole::fakes

/// Leaves the function with the status of `expression`, if that is a failure.
#define FAKE_CUDA_TRY(expression)                                        \
  do {                                                                   \
    if (const auto status_ = (expression); status_ != 0) return status_; \
  } while (false)

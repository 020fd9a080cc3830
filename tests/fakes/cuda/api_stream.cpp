// Streams, events, host functions.
#include <utility>

#include "cuda/entry.h"

using namespace farandole;         // NOLINT: the functions below have C names
using namespace farandole::fakes;  // NOLINT

/// Of the calling thread; 0: while any thread captures, calls that could spoil a capture are
/// refused.
static thread_local int capture_mode = 0;
static constexpr DriverStatus kUnsafe = 900;

FAKE_CUDA_API DriverStatus cuStreamCreate(DriverStream* stream, unsigned flags) {
  FAKE_CUDA_TRY(enter<"cuStreamCreate">(Needs::Context));
  if (stream == nullptr || flags > kStreamNonBlocking) return kDriverInvalidValue;
  *stream = handle_of<DriverStream>(current().make_stream(flags != kStreamNonBlocking));
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuStreamCreateWithPriority(DriverStream* stream, unsigned flags,
                                                      int /*priority*/) {
  FAKE_CUDA_TRY(enter<"cuStreamCreateWithPriority">(Needs::Context));
  if (stream == nullptr || flags > kStreamNonBlocking) return kDriverInvalidValue;
  *stream = handle_of<DriverStream>(current().make_stream(flags != kStreamNonBlocking));
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuStreamDestroy_v2(DriverStream handle) {
  FAKE_CUDA_TRY(enter<"cuStreamDestroy">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve_any(handle, stream));
  if (stream == &stream->context().null_stream() || !stream->bury()) return kDriverInvalidHandle;
  stream->close();
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuStreamWaitEvent(DriverStream handle, DriverEvent event_handle,
                                             unsigned flags) {
  FAKE_CUDA_TRY(enter<"cuStreamWaitEvent">(Needs::Context));
  Stream* stream = nullptr;
  Event* event = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  FAKE_CUDA_TRY(resolve(event_handle, event));
  if (flags != 0) return kDriverInvalidValue;
  const Ticket place = event->place();
  if (place.word() != nullptr) stream->context().enqueue(*stream, [place] { place.wait(); });
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuStreamSynchronize(DriverStream handle) {
  FAKE_CUDA_TRY(enter<"cuStreamSynchronize">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  stream->context().mark(*stream).wait();
  return stream->context().broken();
}

FAKE_CUDA_API DriverStatus cuStreamQuery(DriverStream handle) {
  FAKE_CUDA_TRY(enter<"cuStreamQuery">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  if (!stream->idle()) return kDriverNotReady;
  return stream->context().broken();
}

FAKE_CUDA_API DriverStatus cuStreamIsCapturing(DriverStream handle, int* state) {
  FAKE_CUDA_TRY(enter<"cuStreamIsCapturing">(Needs::Start));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve_any(handle, stream));
  if (state == nullptr) return kDriverInvalidValue;
  *state = stream->capturing() ? 1 : 0;
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuEventCreate(DriverEvent* event, unsigned flags) {
  FAKE_CUDA_TRY(enter<"cuEventCreate">(Needs::Context));
  if (event == nullptr || flags > 7) return kDriverInvalidValue;
  *event = handle_of<DriverEvent>(Event::keep(new Event(current())));
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuEventDestroy_v2(DriverEvent handle) {
  FAKE_CUDA_TRY(enter<"cuEventDestroy">(Needs::Context));
  Event* event = nullptr;
  FAKE_CUDA_TRY(resolve(handle, event));
  return event->bury() ? kDriverSuccess : kDriverInvalidHandle;
}

FAKE_CUDA_API DriverStatus cuEventRecord(DriverEvent event_handle, DriverStream handle) {
  FAKE_CUDA_TRY(enter<"cuEventRecord">(Needs::Context));
  Stream* stream = nullptr;
  Event* event = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  FAKE_CUDA_TRY(resolve(event_handle, event));
  if (&event->context() != &stream->context()) return kDriverInvalidHandle;
  event->recorded(stream->context().mark(*stream));
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE_CUDA_TRY(enter<"cuThreadExchangeStreamCaptureMode">(Needs::Start));
  std::swap(*mode, capture_mode);
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuEventQuery(DriverEvent handle) {
  FAKE_CUDA_TRY(enter<"cuEventQuery">(Needs::Start));
  if (capture_mode != kCaptureRelaxed && Stream::captures().load() > 0) return kUnsafe;
  Event* event = nullptr;
  FAKE_CUDA_TRY(resolve(handle, event));
  if (const auto status = event->context().broken(); status != 0) return status;
  return event->place().done() ? kDriverSuccess : kDriverNotReady;
}

FAKE_CUDA_API DriverStatus cuEventSynchronize(DriverEvent handle) {
  FAKE_CUDA_TRY(enter<"cuEventSynchronize">(Needs::Context));
  Event* event = nullptr;
  FAKE_CUDA_TRY(resolve(handle, event));
  event->place().wait();
  return event->context().broken();
}

FAKE_CUDA_API DriverStatus cuLaunchHostFunc(DriverStream handle, void (*function)(void* argument),
                                            void* argument) {
  FAKE_CUDA_TRY(enter<"cuLaunchHostFunc">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  if (function == nullptr) return kDriverInvalidValue;
  Context& context = stream->context();
  context.enqueue(*stream, [&context, function, argument] {
    if (context.broken() != kDriverSuccess) return;
    inside_host_function() = true;
    function(argument);
    inside_host_function() = false;
  });
  return kDriverSuccess;
}

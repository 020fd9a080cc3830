// What tests ask beside the driver's functions.
#include "fake_cuda.h"

#include <cstdlib>
#include <cstring>

#include "cuda/copies.h"
#include "cuda/entry.h"

namespace farandole::fakes {
namespace {

/// A test that names a stream wrongly would test nothing.
Stream& must_resolve(DriverStream handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) return *reinterpret_cast<Stream*>(handle);
  Stream* stream = nullptr;
  if (resolve_any(handle, stream) != kDriverSuccess) std::abort();
  return *stream;
}

void read(const CopyCounts& counts, std::size_t& number, std::size_t& bytes) {
  number = counts.number.load(std::memory_order_relaxed);
  bytes = counts.bytes.load(std::memory_order_relaxed);
}

}  // namespace
}  // namespace farandole::fakes

using namespace farandole;         // NOLINT: the functions below have C names
using namespace farandole::fakes;  // NOLINT

static_assert(std::is_same_v<FakeCudaAddress, DriverAddress>);

FAKE_CUDA_API void* fakeCudaHostAddress(FakeCudaAddress address) {
  const Place place = Memory::get().find(address, 1);
  return place.kind == Place::Kind::Device ? place.content : nullptr;
}

FAKE_CUDA_API int fakeCudaIsPinned(const void* memory, std::size_t bytes) {
  const Place place = Memory::get().find(reinterpret_cast<DriverAddress>(memory), bytes);
  return place.kind == Place::Kind::Pinned ? 1 : 0;
}

FAKE_CUDA_API void fakeCudaHold(FakeCudaStream stream) {
  must_resolve(static_cast<DriverStream>(stream)).hold();
}

FAKE_CUDA_API void fakeCudaRelease(FakeCudaStream stream) {
  must_resolve(static_cast<DriverStream>(stream)).let_go();
}

FAKE_CUDA_API void fakeCudaBeginCapture(FakeCudaStream stream) {
  must_resolve(static_cast<DriverStream>(stream)).capture(true);
}

FAKE_CUDA_API void fakeCudaEndCapture(FakeCudaStream stream) {
  must_resolve(static_cast<DriverStream>(stream)).capture(false);
}

FAKE_CUDA_API void fakeCudaFail(const char* rules) {
  Function::forget_all_calls();
  faults().replace(rules);
}

FAKE_CUDA_API void fakeCudaBreak(int device, int status) {
  Context* context = Devices::get().context(device);
  if (context == nullptr) std::abort();
  context->break_with(status);
}

FAKE_CUDA_API std::size_t fakeCudaCalls(const char* function) {
  return Function::calls_of(function);
}

FAKE_CUDA_API void fakeCudaDelay(unsigned microseconds) { Stream::set_delay_us(microseconds); }

FAKE_CUDA_API void fakeCudaCount(FakeCudaCounters* counters) {
  const Memory::Totals totals = Memory::get().totals();
  *counters = FakeCudaCounters{};
  counters->allocations = totals.allocations;
  counters->allocated_bytes = totals.allocated_bytes;
  counters->opened = totals.opened;
  counters->pinned = totals.pinned;
  counters->pinned_bytes = totals.pinned_bytes;
  Stream::for_each([&](const Stream& stream) {
    // The null stream of each context is nobody's.
    if (stream.alive() && &stream != &stream.context().null_stream()) ++counters->streams;
  });
  Event::for_each([&](const Event& event) { counters->events += event.alive() ? 1U : 0U; });
  read(copy_counts(false, true), counters->host_to_device, counters->host_to_device_bytes);
  read(copy_counts(true, false), counters->device_to_host, counters->device_to_host_bytes);
  read(copy_counts(true, true), counters->device_to_device, counters->device_to_device_bytes);
  read(copy_counts(false, false), counters->host_to_host, counters->host_to_host_bytes);
  counters->pageable = pageable_copies().load(std::memory_order_relaxed);
  counters->captured = captured_calls().load(std::memory_order_relaxed);
}

FAKE_CUDA_API int fakeCudaFill(FakeCudaStream handle, FakeCudaAddress address, std::size_t bytes,
                               unsigned char value) {
  FAKE_CUDA_TRY(enter<"fakeCudaFill">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(static_cast<DriverStream>(handle), stream));
  return launch(*stream, address, bytes,
                [value, bytes](std::byte* content) { std::memset(content, value, bytes); });
}

FAKE_CUDA_API int fakeCudaAdd(FakeCudaStream handle, FakeCudaAddress address, std::size_t count,
                              float value) {
  FAKE_CUDA_TRY(enter<"fakeCudaAdd">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(static_cast<DriverStream>(handle), stream));
  return launch(*stream, address, count * sizeof(float), [value, count](std::byte* content) {
    for (std::size_t i = 0; i < count; ++i) {
      float number = 0;
      std::memcpy(&number, content + i * sizeof number, sizeof number);
      number += value;
      std::memcpy(content + i * sizeof number, &number, sizeof number);
    }
  });
}

FAKE_CUDA_API int fakeCudaRun(FakeCudaStream handle, void (*function)(void* argument),
                              void* argument) {
  FAKE_CUDA_TRY(enter<"fakeCudaRun">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(static_cast<DriverStream>(handle), stream));
  stream->context().enqueue(*stream, [function, argument] { function(argument); });
  return kDriverSuccess;
}

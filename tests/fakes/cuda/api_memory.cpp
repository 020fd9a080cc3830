// Memory, copies, what an address is, handles for other processes.
#include <cstring>

#include "cuda/copies.h"
#include "cuda/entry.h"

namespace farandole::fakes {
namespace {

// Attributes of an address, by their numbers in the API.
constexpr int kContextAttribute = 1;
constexpr int kDevicePointer = 3;
constexpr int kHostPointer = 4;
constexpr int kBufferId = 7;
constexpr int kIsManaged = 8;
constexpr int kRangeStart = 11;
constexpr int kRangeSize = 12;
constexpr unsigned kMemoryOfHost = 1;

template <typename T>
void write(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
}

/// An address that is not that of memory of this kind breaks the context.
DriverStatus noticed(DriverStatus status) {
  if (status == kDriverInvalidValue) current().break_with(status);
  return status;
}

/// A copy that is over when the call returns, ordered as the null stream is.
DriverStatus copy_now(DriverAddress to, DriverAddress from, std::size_t bytes) {
  Stream& stream = current().null_stream();
  FAKE_CUDA_TRY(copy(to, from, bytes, stream));
  current().mark(stream).wait();
  return current().broken();
}

DriverStatus copy_on(DriverAddress to, DriverAddress from, std::size_t bytes, DriverStream handle) {
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  return copy(to, from, bytes, *stream);
}

DriverAddress address_of(const void* memory) { return reinterpret_cast<DriverAddress>(memory); }

}  // namespace
}  // namespace farandole::fakes

using namespace farandole;         // NOLINT: the functions below have C names
using namespace farandole::fakes;  // NOLINT

FAKE_CUDA_API DriverStatus cuMemAlloc_v2(DriverAddress* address, std::size_t bytes) {
  FAKE_CUDA_TRY(enter<"cuMemAlloc">(Needs::Context));
  if (address == nullptr) return kDriverInvalidValue;
  return Memory::get().allocate(current(), bytes, *address);
}

FAKE_CUDA_API DriverStatus cuMemFree_v2(DriverAddress address) {
  FAKE_CUDA_TRY(enter<"cuMemFree">(Needs::Context));
  return noticed(Memory::get().release(address));
}

FAKE_CUDA_API DriverStatus cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  FAKE_CUDA_TRY(enter<"cuMemGetInfo">(Needs::Context));
  *total_bytes = Memory::bytes_of_device();
  *free_bytes = *total_bytes - Memory::get().used_bytes(current());
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  FAKE_CUDA_TRY(enter<"cuMemHostAlloc">(Needs::Context));
  if (memory == nullptr || flags > 7) return kDriverInvalidValue;
  return Memory::get().allocate_pinned(current(), bytes, *memory);
}

FAKE_CUDA_API DriverStatus cuMemFreeHost(void* memory) {
  FAKE_CUDA_TRY(enter<"cuMemFreeHost">(Needs::Context));
  return noticed(Memory::get().release_pinned(memory));
}

FAKE_CUDA_API DriverStatus cuMemHostRegister_v2(void* memory, std::size_t bytes,
                                                unsigned /*flags*/) {
  FAKE_CUDA_TRY(enter<"cuMemHostRegister">(Needs::Context));
  return Memory::get().pin(current(), memory, bytes);
}

FAKE_CUDA_API DriverStatus cuMemHostUnregister(void* memory) {
  FAKE_CUDA_TRY(enter<"cuMemHostUnregister">(Needs::Context));
  return Memory::get().unpin(memory);
}

FAKE_CUDA_API DriverStatus cuMemcpyAsync(DriverAddress to, DriverAddress from, std::size_t bytes,
                                         DriverStream stream) {
  FAKE_CUDA_TRY(enter<"cuMemcpyAsync">(Needs::Context));
  return copy_on(to, from, bytes, stream);
}

FAKE_CUDA_API DriverStatus cuMemcpyDtoHAsync_v2(void* to, DriverAddress from, std::size_t bytes,
                                                DriverStream stream) {
  FAKE_CUDA_TRY(enter<"cuMemcpyDtoHAsync">(Needs::Context));
  return copy_on(address_of(to), from, bytes, stream);
}

FAKE_CUDA_API DriverStatus cuMemcpyHtoDAsync_v2(DriverAddress to, const void* from,
                                                std::size_t bytes, DriverStream stream) {
  FAKE_CUDA_TRY(enter<"cuMemcpyHtoDAsync">(Needs::Context));
  return copy_on(to, address_of(from), bytes, stream);
}

FAKE_CUDA_API DriverStatus cuMemcpyDtoDAsync_v2(DriverAddress to, DriverAddress from,
                                                std::size_t bytes, DriverStream stream) {
  FAKE_CUDA_TRY(enter<"cuMemcpyDtoDAsync">(Needs::Context));
  return copy_on(to, from, bytes, stream);
}

FAKE_CUDA_API DriverStatus cuMemcpyDtoH_v2(void* to, DriverAddress from, std::size_t bytes) {
  FAKE_CUDA_TRY(enter<"cuMemcpyDtoH">(Needs::Context));
  return copy_now(address_of(to), from, bytes);
}

FAKE_CUDA_API DriverStatus cuMemcpyHtoD_v2(DriverAddress to, const void* from, std::size_t bytes) {
  FAKE_CUDA_TRY(enter<"cuMemcpyHtoD">(Needs::Context));
  return copy_now(to, address_of(from), bytes);
}

FAKE_CUDA_API DriverStatus cuMemsetD8Async(DriverAddress to, unsigned char value, std::size_t bytes,
                                           DriverStream handle) {
  FAKE_CUDA_TRY(enter<"cuMemsetD8Async">(Needs::Context));
  Stream* stream = nullptr;
  FAKE_CUDA_TRY(resolve(handle, stream));
  return launch(*stream, to, bytes,
                [value, bytes](std::byte* content) { std::memset(content, value, bytes); });
}

/// Of memory that is known.
static DriverStatus tell(void* data, int attribute, const Place& place, DriverAddress address) {
  const bool of_device = place.kind == Place::Kind::Device;
  switch (attribute) {
    case kContextAttribute:
      write(data, handle_of<DriverContext>(place.block->context));
      return kDriverSuccess;
    case kAttributeMemoryType:
      write(data, of_device ? kMemoryOfDevice : kMemoryOfHost);
      return kDriverSuccess;
    case kDevicePointer:
      write(data, address);
      return kDriverSuccess;
    case kHostPointer:
      if (of_device) return kDriverInvalidValue;
      write(data, address);
      return kDriverSuccess;
    case kBufferId:
      write(data, place.block->number);
      return kDriverSuccess;
    case kIsManaged:
      write(data, 0U);
      return kDriverSuccess;
    case kAttributeOrdinal:
      write(data, place.block->context->device());
      return kDriverSuccess;
    case kRangeStart:
      write(data, place.block->address);
      return kDriverSuccess;
    case kRangeSize:
      write(data, place.block->bytes);
      return kDriverSuccess;
    default:
      return kDriverInvalidValue;
  }
}

FAKE_CUDA_API DriverStatus cuPointerGetAttribute(void* data, int attribute, DriverAddress address) {
  FAKE_CUDA_TRY(enter<"cuPointerGetAttribute">(Needs::Context));
  const Place place = Memory::get().find(address, 1);
  if (data == nullptr || place.block == nullptr) return kDriverInvalidValue;
  return tell(data, attribute, place, address);
}

/// Memory that is not known is no error here: its kind is 0. Its other attributes are not written.
FAKE_CUDA_API DriverStatus cuPointerGetAttributes(unsigned count, int* attributes, void** data,
                                                  DriverAddress address) {
  FAKE_CUDA_TRY(enter<"cuPointerGetAttributes">(Needs::Context));
  if (attributes == nullptr || data == nullptr) return kDriverInvalidValue;
  const Place place = Memory::get().find(address, 1);
  for (unsigned i = 0; i < count; ++i) {
    if (place.block != nullptr) {
      FAKE_CUDA_TRY(tell(data[i], attributes[i], place, address));
    } else if (attributes[i] == kAttributeMemoryType) {
      write(data[i], 0U);
    }
  }
  return kDriverSuccess;
}

FAKE_CUDA_API_ANY_TYPES DriverStatus cuIpcGetMemHandle(IpcHandle* handle, DriverAddress address) {
  FAKE_CUDA_TRY(enter<"cuIpcGetMemHandle">(Needs::Context));
  if (handle == nullptr) return kDriverInvalidValue;
  return Memory::get().export_block(address, *handle);
}

FAKE_CUDA_API_ANY_TYPES DriverStatus cuIpcOpenMemHandle_v2(DriverAddress* address, IpcHandle handle,
                                                           unsigned flags) {
  FAKE_CUDA_TRY(enter<"cuIpcOpenMemHandle">(Needs::Context));
  if (address == nullptr || flags != 1) return kDriverInvalidValue;
  return Memory::get().import_block(current(), handle, *address);
}

FAKE_CUDA_API_ANY_TYPES DriverStatus cuIpcCloseMemHandle(DriverAddress address) {
  FAKE_CUDA_TRY(enter<"cuIpcCloseMemHandle">(Needs::Context));
  return noticed(Memory::get().close_imported(address));
}

/// Handles of events are as large as those of memory.
FAKE_CUDA_API_ANY_TYPES DriverStatus cuIpcGetEventHandle(IpcHandle* /*handle*/,
                                                         DriverEvent /*event*/) {
  FAKE_CUDA_TRY(enter<"cuIpcGetEventHandle">(Needs::Context));
  return kNotSupported;
}

FAKE_CUDA_API_ANY_TYPES DriverStatus cuIpcOpenEventHandle(DriverEvent* /*event*/,
                                                          IpcHandle /*handle*/) {
  FAKE_CUDA_TRY(enter<"cuIpcOpenEventHandle">(Needs::Context));
  return kNotSupported;
}

/// The functions of a device's driver that the core calls: a table, filled at run time from the
/// library of the system. No header of the vendor is included and nothing is linked.
///
/// The names and types are those of CUDA's driver API (CUDA Driver API Reference, NVIDIA). HIP has
/// functions of the same shape under other names; a second table would be filled from
/// `libamdhip64.so`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "result.h"

namespace farandole {

/// What CUDA's headers call CUresult, CUdevice, CUdeviceptr, CUcontext, CUstream and CUevent.
using DriverStatus = int;
using DriverDevice = int;
using DriverAddress = unsigned long long;
using DriverContext = struct DriverContextOpaque*;
using DriverStream = struct DriverStreamOpaque*;
using DriverEvent = struct DriverEventOpaque*;
/// CUipcMemHandle: names memory of a device to other processes of the host. Passed by value.
struct DriverIpcHandle {
  char bytes[64];
};

/// Numbers of the API that the core uses.
inline constexpr DriverStatus kDriverSuccess = 0;
inline constexpr DriverStatus kDriverInvalidValue = 1;
inline constexpr DriverStatus kDriverOutOfMemory = 2;
inline constexpr DriverStatus kDriverNoDevice = 100;
inline constexpr DriverStatus kDriverInvalidHandle = 400;
inline constexpr DriverStatus kDriverNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kHostPortable = 1;        // CU_MEMHOSTALLOC_PORTABLE
inline constexpr int kAttributeMemoryType = 2;      // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
inline constexpr int kAttributeOrdinal = 9;         // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
inline constexpr int kCaptureRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kCaptureNone = 0;              // CU_STREAM_CAPTURE_STATUS_NONE
inline constexpr unsigned kMemoryOfDevice = 2;      // CU_MEMORYTYPE_DEVICE
inline constexpr unsigned kIpcPeerAccess = 1;       // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

/// Name in the table, symbol in the library, types of the arguments. Every function answers with a
/// status.
#define FARANDOLE_DRIVER_FUNCTIONS(X)                                                           \
  X(init, "cuInit", (unsigned flags))                                                           \
  X(driver_version, "cuDriverGetVersion", (int* version))                                       \
  X(error_name, "cuGetErrorName", (DriverStatus status, const char** name))                     \
  X(error_text, "cuGetErrorString", (DriverStatus status, const char** text))                   \
  X(device_count, "cuDeviceGetCount", (int* count))                                             \
  X(device_get, "cuDeviceGet", (DriverDevice * device, int ordinal))                            \
  X(device_uuid, "cuDeviceGetUuid_v2", (char* bytes, DriverDevice device))                      \
  X(device_reaches, "cuDeviceCanAccessPeer",                                                    \
    (int* reaches, DriverDevice device, DriverDevice other))                                    \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (DriverContext * context, DriverDevice device)) \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (DriverDevice device))                     \
  X(context_push, "cuCtxPushCurrent_v2", (DriverContext context))                               \
  X(context_pop, "cuCtxPopCurrent_v2", (DriverContext * context))                               \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                    \
  X(stream_create, "cuStreamCreate", (DriverStream * stream, unsigned flags))                   \
  X(stream_destroy, "cuStreamDestroy_v2", (DriverStream stream))                                \
  X(stream_wait_event, "cuStreamWaitEvent",                                                     \
    (DriverStream stream, DriverEvent event, unsigned flags))                                   \
  X(stream_synchronize, "cuStreamSynchronize", (DriverStream stream))                           \
  X(stream_query, "cuStreamQuery", (DriverStream stream))                                       \
  X(stream_is_capturing, "cuStreamIsCapturing", (DriverStream stream, int* state))              \
  X(event_create, "cuEventCreate", (DriverEvent * event, unsigned flags))                       \
  X(event_destroy, "cuEventDestroy_v2", (DriverEvent event))                                    \
  X(event_record, "cuEventRecord", (DriverEvent event, DriverStream stream))                    \
  X(event_query, "cuEventQuery", (DriverEvent event))                                           \
  X(event_synchronize, "cuEventSynchronize", (DriverEvent event))                               \
  X(launch_host, "cuLaunchHostFunc",                                                            \
    (DriverStream stream, void (*function)(void* argument), void* argument))                    \
  X(allocate, "cuMemAlloc_v2", (DriverAddress * address, std::size_t bytes))                    \
  X(release, "cuMemFree_v2", (DriverAddress address))                                           \
  X(allocate_host, "cuMemHostAlloc", (void** memory, std::size_t bytes, unsigned flags))        \
  X(release_host, "cuMemFreeHost", (void* memory))                                              \
  X(copy, "cuMemcpyAsync",                                                                      \
    (DriverAddress to, DriverAddress from, std::size_t bytes, DriverStream stream))             \
  X(set_bytes, "cuMemsetD8Async",                                                               \
    (DriverAddress to, unsigned char value, std::size_t bytes, DriverStream stream))            \
  X(pointer_attributes, "cuPointerGetAttributes",                                               \
    (unsigned count, int* attributes, void** data, DriverAddress address))                      \
  X(ipc_export, "cuIpcGetMemHandle", (DriverIpcHandle * handle, DriverAddress address))         \
  X(ipc_open, "cuIpcOpenMemHandle_v2",                                                          \
    (DriverAddress * address, DriverIpcHandle handle, unsigned flags))                          \
  X(ipc_close, "cuIpcCloseMemHandle", (DriverAddress address))

struct DeviceDriver {
#define FARANDOLE_DECLARE(name, symbol, arguments) DriverStatus(*name) arguments = nullptr;
  FARANDOLE_DRIVER_FUNCTIONS(FARANDOLE_DECLARE)
#undef FARANDOLE_DECLARE
};

/// The driver in that library; stays loaded for ever, as other threads of it may run on. Fails
/// where there is no such library, it lacks a function, or it cannot start (no device node, no
/// kernel module, a container without the device). Errors have code Unsupported and say what to do.
[[nodiscard]] Result<std::shared_ptr<const DeviceDriver>> load_driver(const std::string& library);

/// The library of NVIDIA's driver.
inline constexpr const char* kCudaDriver = "libcuda.so.1";

/// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
[[nodiscard]] std::string describe(const DeviceDriver& driver, DriverStatus status);

}  // namespace farandole

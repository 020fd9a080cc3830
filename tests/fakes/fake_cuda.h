/// A CUDA driver without a device, for tests: `libcuda.so.1` of this folder has the C names of the
/// driver API, and the functions below beside them. Facts of the interface are those of the CUDA
/// Driver API Reference (NVIDIA).
///
/// Faithful:
/// * Device memory cannot be read by the host: it lies in pages without access. What it holds is
///   mapped a second time, for the copies of this library and for fakeCudaHostAddress.
/// * New and freed memory is full of 0xCD. A freed address is refused (1), and breaks the context.
/// * A stream is a thread. It starts each command after a random delay, so nothing is done before
///   an event, a stream or the host has waited for it. What is ordered is what CUDA orders, and
///   nothing else: a host that reads too early is a race in a report of the thread sanitizer.
/// * Copies between pageable host memory and a device: to the device the source is read before the
///   call returns; to the host the call waits. With pinned memory on the host's side they are late.
/// * Events count from their last record. A wait for one that was never recorded is nothing.
/// * The null stream (0 or 1) waits for streams made without CU_STREAM_NON_BLOCKING, and they for
/// it.
/// * Primary contexts are counted. The current context is that of a thread: without one, status
/// 201.
/// * Handles that were destroyed are refused with 400. No handle has the value of an older one.
/// * Functions of cuLaunchHostFunc run on the stream's thread, and may call nothing of here (800).
/// * A broken context answers every call with its error; its streams skip copies and host
/// functions.
/// * After a fork the child is told 3 (not initialised).
///
/// Not faithful:
/// * cuMemFree does not wait. Who frees memory that a command still needs breaks the context (700).
/// * Memory of a device is counted in each process by itself.
/// * A capture only pretends: all calls on a stream that captures answer 900, none is recorded.
/// * Of attributes of devices a few have values, others are 0. There are no events between
/// processes,
///   no graphs, no modules, no stream of the thread (2), no contexts but the primary ones.
/// * cuEventQuery and cuStreamIsCapturing of a stream with a name need no current context.
///
/// Environment, read when the library is loaded or at cuInit:
/// * FAKE_CUDA_DEVICES=1        number of devices; 0: cuInit answers 100
/// * CUDA_VISIBLE_DEVICES       numbers of those that are seen, in this order, up to the first that
/// is none
/// * FAKE_CUDA_VERSION=12040    what cuDriverGetVersion answers
/// * FAKE_CUDA_MEMORY_MB=4096   memory of each device; then cuMemAlloc answers 2
/// * FAKE_CUDA_DELAY_US=200     a command waits up to that long before it starts; 0: none
/// * FAKE_CUDA_SEED=1           another seed, other delays
/// * FAKE_CUDA_PEERS=1          whether devices can reach each other's memory
/// * FAKE_CUDA_FAIL             faults, separated by commas: FUNCTION:CALL:STATUS, see faults.h
#ifndef FARANDOLE_TESTS_FAKE_CUDA_H
#define FARANDOLE_TESTS_FAKE_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void* FakeCudaStream;  ///< a CUstream
typedef unsigned long long FakeCudaAddress;

/// What lives, and what was asked for since the library was loaded.
typedef struct {
  size_t allocations;  ///< device memory, without what was opened by a handle of another process
  size_t allocated_bytes;
  size_t opened;  ///< device memory of other processes
  size_t pinned;  ///< by cuMemHostAlloc or cuMemHostRegister
  size_t pinned_bytes;
  size_t streams;
  size_t events;
  size_t host_to_device;  ///< copies, and their bytes
  size_t host_to_device_bytes;
  size_t device_to_host;
  size_t device_to_host_bytes;
  size_t device_to_device;
  size_t device_to_device_bytes;
  size_t host_to_host;
  size_t host_to_host_bytes;
  size_t pageable;  ///< copies of those that touched memory of the host that is not pinned
  size_t captured;  ///< calls that were refused because a stream captured
} FakeCudaCounters;

/// Where the host may read and write what is at that device address; NULL if nothing lives there.
/// Whoever uses it must have waited for the streams that use the memory.
void* fakeCudaHostAddress(FakeCudaAddress address);

/// Whether these bytes of the host are pinned, all of them.
int fakeCudaIsPinned(const void* memory, size_t bytes);

/// From the return on no further command of the stream starts, until it is released. One that runs
/// goes on. What the host does before it releases is seen by what runs then. Both also take a
/// stream that was destroyed while it was held.
void fakeCudaHold(FakeCudaStream stream);
void fakeCudaRelease(FakeCudaStream stream);

/// From the begin to the end cuStreamIsCapturing says 1, and all else on the stream answers 900.
void fakeCudaBeginCapture(FakeCudaStream stream);
void fakeCudaEndCapture(FakeCudaStream stream);

/// Replaces the faults by `rules` (the syntax of FAKE_CUDA_FAIL; "": none), and counts calls
/// from 1.
void fakeCudaFail(const char* rules);
/// From now on all calls with the context of that device answer `status`, as after a failed kernel.
/// 0: mends the context, which no real one can be.
void fakeCudaBreak(int device, int status);
/// Number of calls of a function so far, "cuMemcpyAsync"; 0 if it was never called.
size_t fakeCudaCalls(const char* function);
/// The longest delay before a command, of all streams.
void fakeCudaDelay(unsigned microseconds);
void fakeCudaCount(FakeCudaCounters* counters);

/// Kernels: run on the stream, after its delay. Answer with a status, as functions of the driver.
int fakeCudaFill(FakeCudaStream stream, FakeCudaAddress address, size_t bytes, unsigned char value);
/// Adds `value` to `count` numbers of type float.
int fakeCudaAdd(FakeCudaStream stream, FakeCudaAddress address, size_t count, float value);
/// Runs a function on the stream's thread, in order, even in a broken context. It may wait for
/// whatever does not need this stream, and it may call the functions of this header.
int fakeCudaRun(FakeCudaStream stream, void (*function)(void* argument), void* argument);

#ifdef __cplusplus
}
#endif

#endif

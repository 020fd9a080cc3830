/// NCCL without devices, for tests: `libnccl.so.2` of this folder has NCCL's C names, over the
/// devices of fake_cuda.h. Facts of the interface are those of the NCCL documentation (NVIDIA).
///
/// Faithful:
/// * Ranks are processes of one machine, threads of one process, or both. The process that made the
///   unique id must live until all have joined.
/// * An operation runs late, on the stream that it was given, and holds that stream, not the host,
///   until all ranks came. Operations of one communicator run in the order of their calls, on
///   whatever streams.
/// * A group starts at its end. Sends and receives of one group go on together, so pairs may wait
///   for each other. Several communicators may be made in one group.
/// * With `blocking = 0` calls answer ncclInProgress and do their work later, on another thread;
///   until ncclCommGetAsyncError has another answer, the communicator takes no other call. What is
///   put on the stream meanwhile comes before the operation.
/// * Two ranks on one device are refused on all ranks: ncclInvalidUsage.
/// * ncclCommAbort ends operations wherever they are, with garbage in the results; that of other
///   ranks goes on waiting until they abort, too.
/// * A communicator that was destroyed is refused: ncclInvalidArgument.
///
/// Not faithful:
/// * Ranks that call different collectives, or with another count, type, op or root, always get the
///   asynchronous error ncclInternalError; later calls answer with it.
/// * The order of additions is that of ranks, each rounded. For an average each rank's number is
///   divided before it is added, of integers the sum.
/// * Operations of a group for one communicator all run on the stream of the first of them, its
///   collectives first.
/// * A buffer that is neither in device memory nor pinned is refused: ncclInvalidArgument, as with
///   NCCL_CHECK_POINTERS=1.
/// * A call needs a current context only when a communicator is made.
/// * A rank that ends is not noticed: the others wait, until they abort.
///
/// Environment; FUNCTION:CALL:STATUS as in faults.h:
/// * FAKE_NCCL_VERSION=22703       before 22400 there are no numbers of 8 bits
/// * FAKE_NCCL_SHARED_DEVICES=0    1: ranks of several processes count as on devices of their own
/// * FAKE_NCCL_FAIL                calls that answer a status
/// * FAKE_NCCL_HANG                ncclAllReduce:3 - that call never completes until it is aborted;
///                                 also ncclCommInitRankConfig, of one that does not block
/// * FAKE_NCCL_ASYNC               ncclAllReduce:3:6 - the same, and when it runs
///                                 ncclCommGetAsyncError answers 6
#ifndef FARANDOLE_TESTS_FAKE_NCCL_H
#define FARANDOLE_TESTS_FAKE_NCCL_H

#include <limits.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct FakeNcclCommunicator* ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;

/// The fields that the documentation had first; a longer one of a newer version is taken, too.
typedef struct {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
} ncclConfig_t;
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define FAKE_NCCL_CONFIG_MAGIC 0xcafebeefU

enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };
enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11
};
enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

// A stream is a CUstream, a result, type or op one of the numbers above.
int ncclGetVersion(int* version);
const char* ncclGetErrorString(int result);
const char* ncclGetLastError(ncclComm_t comm);
int ncclGetUniqueId(ncclUniqueId* id);
int ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank);
int ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                           ncclConfig_t* config);
int ncclCommCount(ncclComm_t comm, int* count);
int ncclCommCuDevice(ncclComm_t comm, int* device);
int ncclCommUserRank(ncclComm_t comm, int* rank);
int ncclCommFinalize(ncclComm_t comm);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclCommGetAsyncError(ncclComm_t comm, int* error);
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, ncclComm_t comm);
int ncclRedOpDestroy(int op, ncclComm_t comm);
int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op, ncclComm_t comm,
                  void* stream);
int ncclReduce(const void* send, void* receive, size_t count, int type, int op, int root,
               ncclComm_t comm, void* stream);
int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root,
                  ncclComm_t comm, void* stream);
int ncclAllGather(const void* send, void* receive, size_t send_count, int type, ncclComm_t comm,
                  void* stream);
int ncclReduceScatter(const void* send, void* receive, size_t receive_count, int type, int op,
                      ncclComm_t comm, void* stream);
int ncclSend(const void* send, size_t count, int type, int peer, ncclComm_t comm, void* stream);
int ncclRecv(void* receive, size_t count, int type, int peer, ncclComm_t comm, void* stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);

typedef struct {
  size_t communicators;  ///< neither destroyed nor aborted
  size_t operations;     ///< started, each of a group by itself
  size_t bytes;          ///< of what they were given to send
} FakeNcclCounters;

/// As the variables of the environment; all three rules are replaced ("" or NULL: none), and calls
/// are counted from 1.
void fakeNcclFaults(const char* fail, const char* hang, const char* async);
/// Number of calls of a function so far, "ncclAllReduce".
size_t fakeNcclCalls(const char* function);
void fakeNcclCount(FakeNcclCounters* counters);

#ifdef __cplusplus
}
#endif

#endif

// The functions of NCCL, and those of fake_nccl.h.
#include <cstring>
#include <string>

#include "fake_nccl.h"
#include "faults.h"
#include "nccl/communicator.h"
#include "nccl/group.h"
#include "nccl/numbers.h"

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default"))) FAKE_ANY_TYPES

namespace farandole::fakes {
namespace {

Rules& failures() {
  static Rules& rules = *new Rules("FAKE_NCCL_FAIL");
  return rules;
}
Rules& hangs() {
  static Rules& rules = *new Rules("FAKE_NCCL_HANG");
  return rules;
}
Rules& async_errors() {
  static Rules& rules = *new Rules("FAKE_NCCL_ASYNC");
  return rules;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

/// Of a call that fails: says why, as ncclGetLastError, and lets the group know.
int fail(int result, const std::string& why) {
  last_error() = why;
  return Group::get().note(result);
}

/// Counts a call; the fault that was asked for, if there is one.
int enter(Function& function, std::uint64_t& call) {
  call = function.call();
  const auto fault = failures().find(function, call);
  return fault ? fail(*fault, function.name() + " was told to fail")
               : static_cast<int>(ncclSuccess);
}

template <Name name>
int enter() {
  std::uint64_t call = 0;
  return enter(function<name>(), call);
}

/// nullptr: there is no such communicator any more.
Communicator* alive(ncclComm_t handle) {
  auto* communicator = reinterpret_cast<Communicator*>(handle);
  return communicator != nullptr && communicator->alive() ? communicator : nullptr;
}

int version() { return static_cast<int>(number_of_environment("FAKE_NCCL_VERSION", 22703)); }

/// All that calls of operations have in common.
int submit(Function& function, Operation operation, int op, ncclComm_t handle, void* stream) {
  std::uint64_t call = 0;
  if (const int fault = enter(function, call); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(handle);
  if (communicator == nullptr) return fail(ncclInvalidArgument, "no such communicator");
  if (const int ready = communicator->ready(); ready != ncclSuccess) {
    return fail(ready, "the communicator is not ready, or has failed");
  }
  const bool short_float = operation.type >= ncclFloat8e4m3;
  if (size_of(operation.type) == 0 || (short_float && version() < 22400)) {
    return fail(ncclInvalidArgument, "no such type");
  }
  if (operation.peer < 0 || operation.peer >= communicator->size()) {
    return fail(ncclInvalidArgument, "no such rank");
  }
  if (!communicator->find_op(op, operation.op)) return fail(ncclInvalidArgument, "no such op");
  if (!within_reach(operation, communicator->rank(), communicator->size())) {
    return fail(ncclInvalidArgument, "a buffer is neither in device memory nor pinned");
  }
  if (const auto error = async_errors().find(function, call)) {
    operation.hangs = true;
    operation.async_error = *error;
  }
  operation.hangs |= hangs().find(function, call).has_value();
  return Group::get().note(Group::get().add(*communicator, std::move(operation), stream));
}

int make_communicator(ncclComm_t* handle, int size, const ncclUniqueId& unique, int rank,
                      bool blocking, bool hangs = false) {
  if (handle == nullptr || size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    return fail(ncclInvalidArgument, "no such rank");
  }
  *handle = nullptr;
  WorldId id{};
  std::memcpy(&id, unique.internal, sizeof id);
  Communicator* communicator = Communicator::keep(new Communicator(size, rank, blocking, hangs));
  int result = communicator->take_device();
  if (result == ncclSuccess) {
    *handle = reinterpret_cast<ncclComm_t>(communicator);
    result = Group::get().add(*communicator, id);
  }
  if (result == ncclSuccess || result == ncclInProgress) return result;
  *handle = nullptr;
  communicator->bury();
  return fail(result, result == ncclInvalidUsage ? "Duplicate GPU detected, or ranks disagree"
                                                 : "the communicator cannot be made");
}

}  // namespace
}  // namespace farandole::fakes

using namespace farandole::fakes;  // NOLINT: the functions below have C names

FAKE_NCCL_API int ncclGetVersion(int* number) {
  if (const int fault = enter<"ncclGetVersion">(); fault != ncclSuccess) return fault;
  if (number == nullptr) return ncclInvalidArgument;
  *number = version();
  return ncclSuccess;
}

FAKE_NCCL_API const char* ncclGetErrorString(int result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

FAKE_NCCL_API const char* ncclGetLastError(ncclComm_t /*comm*/) { return last_error().c_str(); }

FAKE_NCCL_API int ncclGetUniqueId(ncclUniqueId* unique) {
  if (const int fault = enter<"ncclGetUniqueId">(); fault != ncclSuccess) return fault;
  if (unique == nullptr) return ncclInvalidArgument;
  WorldId id{};
  if (!World::make(id)) return fail(ncclSystemError, "no file for the world");
  std::memset(unique->internal, 0, sizeof unique->internal);
  std::memcpy(unique->internal, &id, sizeof id);
  return ncclSuccess;
}

FAKE_NCCL_API int ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  if (const int fault = enter<"ncclCommInitRank">(); fault != ncclSuccess) return fault;
  return make_communicator(comm, size, id, rank, true);
}

FAKE_NCCL_API int ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                         ncclConfig_t* config) {
  Function& made = function<"ncclCommInitRankConfig">();
  std::uint64_t call = 0;
  if (const int fault = enter(made, call); fault != ncclSuccess) return fault;
  bool blocking = true;
  if (config != nullptr) {
    if (config->magic != FAKE_NCCL_CONFIG_MAGIC) {
      return fail(ncclInvalidArgument, "the config was not initialised");
    }
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 &&
        config->blocking != 1) {
      return fail(ncclInvalidArgument, "blocking is neither 0 nor 1");
    }
    blocking = config->blocking != 0;
  }
  return make_communicator(comm, size, id, rank, blocking, hangs().find(made, call).has_value());
}

FAKE_NCCL_API int ncclCommCount(ncclComm_t comm, int* count) {
  if (const int fault = enter<"ncclCommCount">(); fault != ncclSuccess) return fault;
  const Communicator* communicator = alive(comm);
  if (communicator == nullptr || count == nullptr) return ncclInvalidArgument;
  *count = communicator->size();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclCommCuDevice(ncclComm_t comm, int* device) {
  if (const int fault = enter<"ncclCommCuDevice">(); fault != ncclSuccess) return fault;
  const Communicator* communicator = alive(comm);
  if (communicator == nullptr || device == nullptr) return ncclInvalidArgument;
  *device = communicator->device();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclCommUserRank(ncclComm_t comm, int* rank) {
  if (const int fault = enter<"ncclCommUserRank">(); fault != ncclSuccess) return fault;
  const Communicator* communicator = alive(comm);
  if (communicator == nullptr || rank == nullptr) return ncclInvalidArgument;
  *rank = communicator->rank();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclCommFinalize(ncclComm_t comm) {
  if (const int fault = enter<"ncclCommFinalize">(); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (const int ready = communicator->ready(); ready != ncclSuccess) return ready;
  return communicator->finalize();
}

FAKE_NCCL_API int ncclCommDestroy(ncclComm_t comm) {
  if (const int fault = enter<"ncclCommDestroy">(); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(comm);
  if (communicator == nullptr) return fail(ncclInvalidArgument, "no such communicator");
  if (communicator->status() == ncclInProgress) {
    return fail(ncclInvalidArgument, "the communicator has a call in progress");
  }
  communicator->bury();
  communicator->destroy();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclCommAbort(ncclComm_t comm) {
  if (const int fault = enter<"ncclCommAbort">(); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(comm);
  if (communicator == nullptr) return fail(ncclInvalidArgument, "no such communicator");
  communicator->bury();
  communicator->abort();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclCommGetAsyncError(ncclComm_t comm, int* error) {
  if (const int fault = enter<"ncclCommGetAsyncError">(); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(comm);
  if (communicator == nullptr || error == nullptr) return ncclInvalidArgument;
  *error = communicator->status();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                                           ncclComm_t comm) {
  if (const int fault = enter<"ncclRedOpCreatePreMulSum">(); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(comm);
  if (communicator == nullptr || op == nullptr || scalar == nullptr || size_of(type) == 0) {
    return fail(ncclInvalidArgument, "no such communicator, op, factor or type");
  }
  ReduceOp made{.op = ncclSum, .scaled = true};
  if (residence == ncclScalarDevice) {
    made.device_factor = scalar;
  } else {
    std::memcpy(made.host_factor.data(), scalar, size_of(type));
  }
  *op = communicator->add_op(made);
  return ncclSuccess;
}

FAKE_NCCL_API int ncclRedOpDestroy(int op, ncclComm_t comm) {
  if (const int fault = enter<"ncclRedOpDestroy">(); fault != ncclSuccess) return fault;
  Communicator* communicator = alive(comm);
  const bool removed = communicator != nullptr && communicator->remove_op(op);
  return removed ? ncclSuccess : fail(ncclInvalidArgument, "no such op");
}

FAKE_NCCL_API int ncclAllReduce(const void* send, void* receive, std::size_t count, int type,
                                int op, ncclComm_t comm, void* stream) {
  return submit(function<"ncclAllReduce">(), {Kind::AllReduce, send, receive, count, type}, op,
                comm, stream);
}

FAKE_NCCL_API int ncclReduce(const void* send, void* receive, std::size_t count, int type, int op,
                             int root, ncclComm_t comm, void* stream) {
  Operation operation{Kind::Reduce, send, receive, count, type};
  operation.peer = root;
  return submit(function<"ncclReduce">(), operation, op, comm, stream);
}

FAKE_NCCL_API int ncclBroadcast(const void* send, void* receive, std::size_t count, int type,
                                int root, ncclComm_t comm, void* stream) {
  Operation operation{Kind::Broadcast, send, receive, count, type};
  operation.peer = root;
  return submit(function<"ncclBroadcast">(), operation, ncclSum, comm, stream);
}

FAKE_NCCL_API int ncclAllGather(const void* send, void* receive, std::size_t count, int type,
                                ncclComm_t comm, void* stream) {
  return submit(function<"ncclAllGather">(), {Kind::AllGather, send, receive, count, type}, ncclSum,
                comm, stream);
}

FAKE_NCCL_API int ncclReduceScatter(const void* send, void* receive, std::size_t count, int type,
                                    int op, ncclComm_t comm, void* stream) {
  return submit(function<"ncclReduceScatter">(), {Kind::ReduceScatter, send, receive, count, type},
                op, comm, stream);
}

FAKE_NCCL_API int ncclSend(const void* send, std::size_t count, int type, int peer, ncclComm_t comm,
                           void* stream) {
  Operation operation{Kind::Send, send, nullptr, count, type};
  operation.peer = peer;
  return submit(function<"ncclSend">(), operation, ncclSum, comm, stream);
}

FAKE_NCCL_API int ncclRecv(void* receive, std::size_t count, int type, int peer, ncclComm_t comm,
                           void* stream) {
  Operation operation{Kind::Receive, nullptr, receive, count, type};
  operation.peer = peer;
  return submit(function<"ncclRecv">(), operation, ncclSum, comm, stream);
}

FAKE_NCCL_API int ncclGroupStart() {
  if (const int fault = enter<"ncclGroupStart">(); fault != ncclSuccess) return fault;
  Group::get().start();
  return ncclSuccess;
}

FAKE_NCCL_API int ncclGroupEnd() {
  // A group that was told to fail has ended all the same.
  const int fault = enter<"ncclGroupEnd">();
  const int result = Group::get().end();
  return fault != ncclSuccess ? fault : result;
}

FAKE_NCCL_API void fakeNcclFaults(const char* fail_rules, const char* hang_rules,
                                  const char* async_rules) {
  Function::forget_all_calls();
  failures().replace(fail_rules == nullptr ? "" : fail_rules);
  hangs().replace(hang_rules == nullptr ? "" : hang_rules);
  async_errors().replace(async_rules == nullptr ? "" : async_rules);
}

FAKE_NCCL_API std::size_t fakeNcclCalls(const char* function) {
  return Function::calls_of(function);
}

FAKE_NCCL_API void fakeNcclCount(FakeNcclCounters* counters) {
  *counters = FakeNcclCounters{};
  Communicator::for_each([&](const Communicator& communicator) {
    counters->communicators += communicator.alive() ? 1U : 0U;
  });
  counters->operations = traffic().operations.load(std::memory_order_relaxed);
  counters->bytes = traffic().bytes.load(std::memory_order_relaxed);
}

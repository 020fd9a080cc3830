/// The functions of NCCL that the core calls: a table, filled at run time from the library that the
/// process has, or another one. No header of NCCL is included and nothing is linked.
///
/// Names and numbers are those of NCCL's documentation (NVIDIA Collective Communication Library,
/// user guide, 2.18). RCCL has the same ones.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "devices/driver.h"
#include "result.h"
#include "types.h"

namespace farandole {

using NcclStatus = int;
using NcclComm = struct NcclCommOpaque*;

struct NcclId {
  std::array<char, 128> bytes;
};

/// As version 2.18 has it; newer ones read the fields of the version that it names.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  static constexpr int kUndefined = -2147483647 - 1;
};

inline constexpr NcclStatus kNcclSuccess = 0;
inline constexpr NcclStatus kNcclInProgress = 7;
inline constexpr int kNcclOldest = 21800;  // 2.18
inline constexpr int kNcclInt8 = 0;
inline constexpr int kNcclSum = 0;
inline constexpr int kNcclHostScalar = 1;  // ncclScalarHostImmediate

#define FARANDOLE_NCCL_FUNCTIONS(X)                                                              \
  X(version, "ncclGetVersion", (int* code))                                                      \
  X(unique_id, "ncclGetUniqueId", (NcclId * id))                                                 \
  X(open, "ncclCommInitRankConfig",                                                              \
    (NcclComm * comm, int size, NcclId id, int rank, NcclConfig* config))                        \
  X(destroy, "ncclCommDestroy", (NcclComm comm))                                                 \
  X(abort, "ncclCommAbort", (NcclComm comm))                                                     \
  X(async_error, "ncclCommGetAsyncError", (NcclComm comm, NcclStatus * status))                  \
  X(premultiplied_sum, "ncclRedOpCreatePreMulSum",                                               \
    (int* op, void* scalar, int type, int residence, NcclComm comm))                             \
  X(destroy_op, "ncclRedOpDestroy", (int op, NcclComm comm))                                     \
  X(group_start, "ncclGroupStart", ())                                                           \
  X(group_end, "ncclGroupEnd", ())                                                               \
  X(allreduce, "ncclAllReduce",                                                                  \
    (const void* in, void* out, std::size_t count, int type, int op, NcclComm comm,              \
     DriverStream stream))                                                                       \
  X(reduce, "ncclReduce",                                                                        \
    (const void* in, void* out, std::size_t count, int type, int op, int root, NcclComm comm,    \
     DriverStream stream))                                                                       \
  X(broadcast, "ncclBroadcast",                                                                  \
    (const void* in, void* out, std::size_t count, int type, int root, NcclComm comm,            \
     DriverStream stream))                                                                       \
  X(send, "ncclSend",                                                                            \
    (const void* in, std::size_t count, int type, int peer, NcclComm comm, DriverStream stream)) \
  X(receive, "ncclRecv",                                                                         \
    (void* out, std::size_t count, int type, int peer, NcclComm comm, DriverStream stream))

struct NcclLibrary {
#define FARANDOLE_DECLARE(name, symbol, arguments) NcclStatus(*name) arguments = nullptr;
  FARANDOLE_NCCL_FUNCTIONS(FARANDOLE_DECLARE)
#undef FARANDOLE_DECLARE
  const char* (*error_text)(NcclStatus) = nullptr;
  const char* (*last_error)(NcclComm) = nullptr;
  std::string file;
  int version_code = 0;  ///< 22703: 2.27.3
};

/// The one that the process has loaded; else `file`, if it is not empty; else that of the system.
/// Stays loaded for ever. Errors have code Unsupported and say what to do.
[[nodiscard]] Result<std::shared_ptr<const NcclLibrary>> load_nccl(const std::string& file);

/// "2.27.3" of 22703
[[nodiscard]] std::string nccl_version(int code);

/// NCCL's numbers; none: it cannot reduce that.
[[nodiscard]] std::optional<int> nccl_type(DType dtype) noexcept;
[[nodiscard]] std::optional<int> nccl_op(ReduceOp op) noexcept;

}  // namespace farandole

/// Which way tensors on devices travel.
#pragma once

#include <string>

namespace rueda {

/// Of each collective: "NCCL", "STAGED", "MPI" (staged), "PEER" (for what only moves bytes, else
/// staged) or "" (NCCL where it is, else staged).
struct DeviceOptions {
  std::string allreduce;
  std::string allgather;
  std::string broadcast;
  std::string alltoall;
  std::string reducescatter;
  /// An operation is done when it is on its stream, not when it has ended there.
  bool async_completion = false;
  std::string nccl_library;  ///< a file; empty: that of the process or of the system

  template <class Visitor>
  void each(Visitor& visit) {
    visit("gpu_allreduce", allreduce);
    visit("gpu_allgather", allgather);
    visit("gpu_broadcast", broadcast);
    visit("gpu_alltoall", alltoall);
    visit("gpu_reducescatter", reducescatter);
    visit("async_completion", async_completion);
    visit("nccl_library", nccl_library);
  }
};

}  // namespace rueda

/// Operations, and how they run on a stream's thread.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "nccl/world.h"

namespace farandole::fakes {

enum class Kind { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, Send, Receive };

/// An op as it runs: one of the constant ones, or a sum of numbers that are multiplied before.
struct ReduceOp {
  int op = 0;
  bool scaled = false;
  const void* device_factor = nullptr;     ///< read when the operation runs
  std::array<std::byte, 8> host_factor{};  ///< if there is none of the device
};

struct Operation {
  Kind kind;
  const void* send;  ///< addresses of a device or of pinned memory
  void* receive;
  std::size_t count;
  int type;
  ReduceOp op{};
  int peer = 0;  ///< the root, or the other rank
  bool hangs = false;
  int async_error = 0;  ///< of an operation that hangs

  [[nodiscard]] bool between_two() const noexcept {
    return kind == Kind::Send || kind == Kind::Receive;
  }
  [[nodiscard]] std::size_t send_bytes(int size) const noexcept;
  [[nodiscard]] std::size_t receive_bytes(int size) const noexcept;
  [[nodiscard]] bool sends(int rank) const noexcept;
  [[nodiscard]] bool receives(int rank) const noexcept;
};

/// Where the host finds such bytes; nullptr: they are neither in device memory nor pinned, or were
/// freed.
[[nodiscard]] std::byte* reach(const void* address, std::size_t bytes);

/// Whether all that the operation touches can be reached.
[[nodiscard]] bool within_reach(const Operation& operation, int rank, int size);

/// Runs what one communicator does in one group, or one call. A result of NCCL: ncclInternalError
/// if ranks disagree, ncclUnhandledCudaError if a buffer has been freed. Ends early when aborted.
[[nodiscard]] int run(World& world, const std::vector<Operation>& operations);

}  // namespace farandole::fakes

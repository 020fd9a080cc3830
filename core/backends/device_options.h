/// Which way tensors on devices travel.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "types.h"

namespace farandole {

/// The collectives that a way may be chosen for, and the option of each.
inline constexpr std::array kDeviceWays{
    std::pair{Kind::Allreduce, "gpu_allreduce"},
    std::pair{Kind::Allgather, "gpu_allgather"},
    std::pair{Kind::Broadcast, "gpu_broadcast"},
    std::pair{Kind::Alltoall, "gpu_alltoall"},
    std::pair{Kind::Reducescatter, "gpu_reducescatter"},
};

/// The place of a collective's way. All that have none of their own go as an allreduce.
[[nodiscard]] constexpr std::size_t way_of(Kind kind) noexcept {
  for (std::size_t way = 1; way < kDeviceWays.size(); ++way) {
    if (kDeviceWays[way].first == kind) return way;
  }
  return 0;
}

struct DeviceOptions {
  /// "NCCL", "STAGED", "MPI" (staged), "PEER" (for what only moves bytes, else staged) or "" (NCCL
  /// where it is, else staged).
  std::array<std::string, kDeviceWays.size()> ways;
  /// An operation is done when it is on its stream, not when it has ended there.
  bool async_completion = false;
  std::string nccl_library;  ///< a file; empty: that of the process or of the system

  [[nodiscard]] std::string& operator[](Kind kind) noexcept { return ways[way_of(kind)]; }

  template <class Visitor>
  void each(Visitor& visit) {
    for (std::size_t way = 0; way < ways.size(); ++way) visit(kDeviceWays[way].second, ways[way]);
    visit("async_completion", async_completion);
    visit("nccl_library", nccl_library);
  }
};

}  // namespace farandole

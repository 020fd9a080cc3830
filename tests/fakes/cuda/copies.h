/// Copies and fills of memory, in the order of a stream.
#pragma once

#include <atomic>
#include <cstddef>

#include "cuda/memory.h"
#include "cuda/stream.h"

namespace farandole::fakes {

/// Copies asked for so far, by what lies at both ends.
struct CopyCounts {
  std::atomic<std::size_t> number{0};
  std::atomic<std::size_t> bytes{0};
};
[[nodiscard]] CopyCounts& copy_counts(bool from_device, bool to_device);
[[nodiscard]] std::atomic<std::size_t>& pageable_copies();

/// As cuMemcpyAsync.
[[nodiscard]] DriverStatus copy(DriverAddress to, DriverAddress from, std::size_t bytes,
                                Stream& stream);

/// Runs `kernel` on the bytes of that range of device or pinned memory.
[[nodiscard]] DriverStatus launch(Stream& stream, DriverAddress address, std::size_t bytes,
                                  std::function<void(std::byte*)> kernel);

}  // namespace farandole::fakes

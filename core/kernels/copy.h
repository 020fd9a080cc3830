/// Copies for memory whose cache lines are in unusual places. They differ in time only.
///
/// No alignment is asked for; ranges do not overlap; zero bytes are legal with any pointers.
#pragma once

#include <cstddef>

namespace rueda {

/// Into memory that other cores have read since this one wrote it last: a slot. A store to such a
/// line waits until the others have given it up, and a core waits for few stores at a time. Asking
/// for ownership ahead of the stores keeps many requests under way.
void copy_to_peers(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// Copies to memory that will have left the caches before it is read: writes past the caches,
/// without fetching the lines that are overwritten (non-temporal stores). Ordered before any later
/// store of this thread.
void copy_streaming(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// From this size on a result is better written by copy_streaming(): a result larger than the
/// caches of this core has left them when the user reads it. Local to a process: members need not
/// agree on it. Determined once.
[[nodiscard]] std::size_t streaming_bytes() noexcept;

/// To a result of which this is a part.
void copy_out(std::byte* out, const std::byte* in, std::size_t bytes, bool streaming) noexcept;

}  // namespace rueda

/// Plain copies, for memory whose lines lie in unusual places. Bytes are bytes: which copy is taken
/// shows in the time only.
///
/// No alignment is asked for; ranges do not overlap; zero bytes are legal with any pointers.
#pragma once

#include <cstddef>

namespace rueda {

/// Into memory that other cores have read since this one wrote it last: a slot. A store to such a
/// line waits until the others have given it up, and a core waits for few stores at a time. Asking
/// for ownership ahead of the stores keeps many requests under way.
void copy_to_peers(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// To memory that nobody will read before it has left the caches: past them, without fetching the
/// lines that are overwritten. Ordered before any later store of this thread.
void copy_streaming(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// From how many bytes on a result is better written by copy_streaming(): what is larger than the
/// caches of this core will be gone from them when the caller looks at it. Local to a process; no
/// member needs to know what another one does. Found once.
[[nodiscard]] std::size_t streaming_bytes() noexcept;

/// To a result of which this is a part.
void copy_out(std::byte* out, const std::byte* in, std::size_t bytes, bool streaming) noexcept;

}  // namespace rueda

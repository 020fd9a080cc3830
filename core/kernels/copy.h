/// Copies to memory whose cache lines other cores hold, or no cache. They differ only in time.
///
/// Any alignment is legal; ranges do not overlap; zero bytes are legal with any pointers.
#pragma once

#include <cstddef>

namespace farandole {

/// Copies to memory that other cores have read since this core wrote it last, such as a slot. A
/// store to such a line waits until the other cores have given it up, and a core waits for few
/// stores at a time. So the copy asks for ownership ahead of the stores, for many lines at a time.
void copy_to_peers(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// As the C library copies.
void copy_plain(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// Copies to memory that will have left the caches before it is read: writes past the caches,
/// without fetching the lines that are overwritten (non-temporal stores). Ordered before any later
/// store of this thread.
void copy_streaming(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

/// From this size on, copy_streaming() is the better way to write a result: one that is larger than
/// the caches of this core has left them when the user reads it. Members need not agree on the
/// size. It is determined once.
[[nodiscard]] std::size_t streaming_bytes() noexcept;

/// Copies a part of a result, by the way that suits the whole result.
void copy_out(std::byte* out, const std::byte* in, std::size_t bytes, bool streaming) noexcept;

}  // namespace farandole

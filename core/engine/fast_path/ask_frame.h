/// The message by which somebody who waits for others' proposals calls on them; see
/// transport/proposals.h. It goes to all ranks along the control tree.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/little_endian.h"

namespace farandole {

/// First byte of a frame; no other message begins with it.
inline constexpr std::byte kAskFrame{0xC4};

using AskFrame = std::array<std::byte, 9>;

/// In which round, and of which process set: 0 for the world.
struct Ask {
  std::uint32_t generation = 0;
  std::uint32_t round = 0;
};

[[nodiscard]] inline AskFrame encode_ask(const Ask& ask) {
  AskFrame frame{kAskFrame};
  store_little_endian(frame.data() + 1, ask.round);
  store_little_endian(frame.data() + 5, ask.generation);
  return frame;
}

/// Nothing if the bytes are not a call.
[[nodiscard]] inline std::optional<Ask> decode_ask(std::span<const std::byte> frame) {
  if (frame.size() != sizeof(AskFrame) || frame.front() != kAskFrame) return std::nullopt;
  return Ask{.generation = load_little_endian<std::uint32_t>(frame.data() + 5),
             .round = load_little_endian<std::uint32_t>(frame.data() + 1)};
}

}  // namespace farandole

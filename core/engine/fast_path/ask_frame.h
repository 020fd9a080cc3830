/// The message by which somebody who waits for others' proposals calls on them; see
/// transport/proposals.h. It goes to all ranks along the control tree.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/little_endian.h"

namespace rueda {

/// First byte of a frame; no other message begins with it.
inline constexpr std::byte kAskFrame{0xC4};

using AskFrame = std::array<std::byte, 5>;

[[nodiscard]] inline AskFrame encode_ask(std::uint32_t round) {
  AskFrame frame{kAskFrame};
  store_little_endian(frame.data() + 1, round);
  return frame;
}

/// The round. Nothing if the bytes are not a call.
[[nodiscard]] inline std::optional<std::uint32_t> decode_ask(std::span<const std::byte> frame) {
  if (frame.size() != sizeof(AskFrame) || frame.front() != kAskFrame) return std::nullopt;
  return load_little_endian<std::uint32_t>(frame.data() + 1);
}

}  // namespace rueda

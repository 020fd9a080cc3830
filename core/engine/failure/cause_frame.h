/// The message that tells the cause of a failure. A rank sends it to its neighbours in the control
/// tree before it closes its connections.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/failure/cause_finder.h"

namespace farandole {

/// The first byte of a frame. No message of the negotiator begins with it.
inline constexpr std::byte kCauseFrame{0xC0};

/// Sent to the parent, a cause is evidence. Sent by the parent, it is the decision of rank 0.
[[nodiscard]] std::vector<std::byte> encode_cause(const Error& error,
                                                  Evidence evidence = Evidence::Certain);
/// Nothing if the bytes are not a cause frame.
[[nodiscard]] std::optional<CauseFinder::Finding> decode_cause(std::span<const std::byte> frame);

}  // namespace farandole

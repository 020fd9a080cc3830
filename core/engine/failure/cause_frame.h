/// The message that says why a rank gave up, sent to its neighbours before it closes.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/failure/inquest.h"

namespace rueda {

/// First byte of a frame; no message of the negotiator begins with it.
inline constexpr std::byte kCauseFrame{0xC0};

/// To the parent it is evidence, from the parent it is the verdict.
[[nodiscard]] std::vector<std::byte> encode_cause(const Error& error,
                                                  Evidence evidence = Evidence::Certain);
/// Nothing if the bytes are not a cause frame.
[[nodiscard]] std::optional<Inquest::Finding> decode_cause(std::span<const std::byte> frame);

}  // namespace rueda

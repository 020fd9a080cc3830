/// The questions and answers of a survey; see survey.h. They travel along the control tree, from
/// neighbour to neighbour.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/failure/survey.h"

namespace farandole {

/// First byte of a frame; no other message begins with it.
inline constexpr std::byte kSurveyFrame{0xC5};

/// An answer if there is a standing, else a question.
struct SurveyMessage {
  Rank from = -1;
  Rank to = -1;
  Position position;
  std::optional<Standing> standing = std::nullopt;
};

[[nodiscard]] std::vector<std::byte> encode_survey(const SurveyMessage& message);
/// Nothing if the bytes are no such frame.
[[nodiscard]] std::optional<SurveyMessage> decode_survey(std::span<const std::byte> frame);

}  // namespace farandole

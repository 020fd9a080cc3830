#include "engine/failure/survey_frame.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace farandole {

namespace {

// Little endian: hosts of other byte orders are not supported.
struct [[gnu::packed]] Head {
  std::uint8_t mark;
  std::uint8_t answers;  // 0 a question, 1 an answer
  std::uint8_t stream;
  std::uint8_t state;
  std::int32_t from;
  std::int32_t to;
  std::uint64_t number;
  std::uint32_t quiet_ms;
  std::uint32_t count;  // of ranks waited for, which follow, 4 bytes each
};

}  // namespace

std::vector<std::byte> encode_survey(const SurveyMessage& message) {
  Head head{};
  head.mark = static_cast<std::uint8_t>(kSurveyFrame);
  head.answers = static_cast<std::uint8_t>(message.standing ? 1 : 0);
  head.stream = static_cast<std::uint8_t>(message.position.stream);
  head.from = message.from;
  head.to = message.to;
  head.number = message.position.number;
  std::vector<Rank> ranks;
  if (const auto& standing = message.standing) {
    head.state = static_cast<std::uint8_t>(standing->state);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(standing->quiet).count();
    head.quiet_ms = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(ms, 0, std::numeric_limits<std::int32_t>::max()));
    ranks = standing->waits_for;
    if (ranks.size() > Survey::kMostNamed) ranks.resize(Survey::kMostNamed);
    head.count = static_cast<std::uint32_t>(ranks.size());
  }
  std::vector<std::byte> frame(sizeof head + ranks.size() * sizeof(Rank));
  std::memcpy(frame.data(), &head, sizeof head);
  if (!ranks.empty()) {
    std::memcpy(frame.data() + sizeof head, ranks.data(), ranks.size() * sizeof(Rank));
  }
  return frame;
}

std::optional<SurveyMessage> decode_survey(std::span<const std::byte> frame) {
  Head head{};
  if (frame.size() < sizeof head || frame.front() != kSurveyFrame) return std::nullopt;
  std::memcpy(&head, frame.data(), sizeof head);
  const bool sane =
      head.answers <= 1 && head.stream <= static_cast<std::uint8_t>(Position::Stream::Proposals) &&
      head.state <= static_cast<std::uint8_t>(Standing::State::Past) &&
      head.count <= Survey::kMostNamed && frame.size() == sizeof head + head.count * sizeof(Rank);
  if (!sane) return std::nullopt;
  SurveyMessage message{
      .from = head.from,
      .to = head.to,
      .position = {.stream = static_cast<Position::Stream>(head.stream), .number = head.number}};
  if (head.answers == 0) return message;
  Standing standing{.state = static_cast<Standing::State>(head.state),
                    .quiet = std::chrono::milliseconds(head.quiet_ms),
                    .waits_for = std::vector<Rank>(head.count)};
  if (head.count != 0) {
    std::memcpy(standing.waits_for.data(), frame.data() + sizeof head, head.count * sizeof(Rank));
  }
  message.standing = std::move(standing);
  return message;
}

}  // namespace farandole

#include "text.h"

namespace farandole {

namespace {

/// Length of the well-formed UTF-8 character at the front of `text`; 0 if there is none.
std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80U) return 1;
  const std::size_t length = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
  if (lead < 0xC2U || lead > 0xF4U || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  // Too long forms, surrogates, beyond the last code point.
  const unsigned char second = byte(1);
  if ((lead == 0xE0U && second < 0xA0U) || (lead == 0xEDU && second > 0x9FU) ||
      (lead == 0xF0U && second < 0x90U) || (lead == 0xF4U && second > 0x8FU)) {
    return 0;
  }
  return length;
}

}  // namespace

void append_json(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text.front());
    std::size_t taken = 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text.front();
    } else if (c < 0x20U) {
      out += "\\u00";
      out += kHex[c >> 4U];
      out += kHex[c & 0xFU];
    } else if (const std::size_t length = utf8_length(text); length != 0) {
      out += text.substr(0, length);
      taken = length;
    } else {
      out += "\\ufffd";
    }
    text.remove_prefix(taken);
  }
  out += '"';
}

std::string list_ranks(std::span<const Rank> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i != 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last;
  }
  return text;
}

std::string rank_on_host(Rank rank, std::span<const std::string> hosts) {
  std::string text = "rank " + std::to_string(rank);
  if (rank >= 0 && static_cast<std::size_t>(rank) < hosts.size()) {
    text += " on host " + hosts[static_cast<std::size_t>(rank)];
  }
  return text;
}

}  // namespace farandole

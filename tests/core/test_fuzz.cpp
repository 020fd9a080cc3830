/// The fuzzers' targets, with any compiler and sanitizer: over seeds that the real writers made and
/// variations of them that are the same in every run, and over the corpus: what fuzzers have found
/// interesting, and what once failed.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "target.h"

namespace farandole::fuzz {
namespace {

Bytes content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Inputs of `fuzz/corpus/TARGET.zip`, which the build has unpacked.
std::vector<Bytes> corpus_of(const Target& target) {
  std::vector<Bytes> all;
  const std::filesystem::path folder = std::filesystem::path(FARANDOLE_FUZZ_CORPUS) / target.name;
  if (!std::filesystem::exists(folder)) return all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    all.push_back(content_of(entry.path()));
  }
  return all;
}

class Fuzz : public testing::TestWithParam<Target> {};

TEST_P(Fuzz, seeds_and_corpus_do_no_harm) {
  const auto corpus = corpus_of(GetParam());
  ASSERT_FALSE(corpus.empty());
  for (const Bytes& input : GetParam().seeds()) GetParam().run(input);
  for (const Bytes& input : corpus) GetParam().run(input);
  GetParam().run({});
}

TEST_P(Fuzz, a_cut_message_does_no_harm) {
  for (const Bytes& input : GetParam().seeds()) {
    const std::size_t step = 1 + input.size() / std::min<std::size_t>(200, GetParam().variations);
    for (std::size_t length = 0; length < input.size(); length += step) {
      // A copy of its own: the address sanitizer sees a read beyond its end.
      const Bytes cut(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(length));
      GetParam().run(cut);
    }
  }
}

TEST_P(Fuzz, changed_bytes_do_no_harm) {
  std::mt19937_64 random(20);
  const auto pick = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  constexpr std::array<std::uint8_t, 8> kEdges{0, 1, 2, 0x7F, 0x80, 0xC0, 0xFE, 0xFF};
  for (const Bytes& input : GetParam().seeds()) {
    if (input.empty()) continue;
    for (std::size_t i = 0; i < GetParam().variations; ++i) {
      Bytes changed = input;
      for (std::size_t times = 1 + pick(4); times > 0; --times) {
        const std::size_t at = pick(changed.size());
        const auto value = pick(2) == 0 ? kEdges[pick(kEdges.size())] : pick(256);
        switch (pick(4)) {
          case 0: {  // a piece twice
            const std::size_t end = std::min(changed.size(), at + 1 + pick(24));
            const Bytes piece(changed.begin() + static_cast<std::ptrdiff_t>(at),
                              changed.begin() + static_cast<std::ptrdiff_t>(end));
            changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(pick(changed.size())),
                           piece.begin(), piece.end());
            break;
          }
          case 1:  // a byte less
            if (changed.size() > 1)
              changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(at));
            break;
          default:
            changed[at] = static_cast<std::byte>(value);
        }
      }
      GetParam().run(changed);
    }
  }
}

std::string name_of(const testing::TestParamInfo<Target>& info) {
  return std::string(info.param.name);
}

INSTANTIATE_TEST_SUITE_P(All, Fuzz, testing::ValuesIn(targets().begin(), targets().end()), name_of);

}  // namespace
}  // namespace farandole::fuzz

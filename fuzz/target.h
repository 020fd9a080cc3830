/// What is fuzzed: every parser of the core that reads bytes which another process has written.
///
/// A target eats any bytes and must survive them; beyond that it checks what must hold of them, and
/// calls `require` for it. Its seeds are made by the code that writes such bytes in a real job.
/// libFuzzer runs the targets for as long as it is told to (driver.cpp); the tests run each of them
/// over its seeds, the cases that once failed, and a few thousand variations (test_fuzz.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

namespace farandole::fuzz {

using Bytes = std::vector<std::byte>;

struct Target {
  std::string_view name;
  void (*run)(std::span<const std::byte> input);
  std::vector<Bytes> (*seeds)();
  std::size_t variations = 300;  ///< of each seed, in the tests: few where a run takes long
};

[[nodiscard]] std::span<const Target> targets();

/// Ends the process if `holds` is false: a finding.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Bytes as a script: numbers and pieces until nothing is left; zeros after that.
class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : rest_(bytes) {}

  [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= std::uint32_t{byte()} << 8 * i;
    return value;
  }
  std::span<const std::byte> piece(std::size_t bytes) {
    const auto taken = rest_.first(bytes < rest_.size() ? bytes : rest_.size());
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> all() { return piece(rest_.size()); }

 private:
  std::span<const std::byte> rest_;
};

// One for each file of this folder that reads such bytes.
extern const Target kWire;
extern const Target kNegotiator;
extern const Target kCauseFrame;
extern const Target kSocketChannel;
extern const Target kPeerLink;
extern const Target kSharedMemory;
extern const Target kSharedOperations;
extern const Target kProposals;

}  // namespace farandole::fuzz

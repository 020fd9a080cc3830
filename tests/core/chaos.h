/// Weather for a relay: delays, narrow lines, single bytes and stalls, by a seed. Now and then what
/// comes after a rest is lost on its way and sent again long after, while other connections are
/// quick.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <span>

#include "cluster.h"
#include "overheard.h"
#include "relay.h"

namespace farandole::testing {

class Chaos {
 public:
  /// `lost`: bursts of a thousand that stop at their first byte.
  Chaos(std::uint64_t seed, std::uint64_t lost) : random_(seed), lost_(lost) {}

  [[nodiscard]] Relay::Turn operator()(std::span<const std::byte> waiting) {
    using std::chrono::microseconds;
    const auto now = Clock::now();
    const bool rested = now > std::exchange(last_, now) + kRest;
    if (rested && below(1000) < lost_) {
      const auto wait = microseconds(15000 + below(45000));
      last_ = now + wait;
      return {.wait = wait, .bytes = waiting.size()};
    }
    if (turns_ == 0) change();
    --turns_;
    switch (kind_) {
      case Kind::Late:
        return {.wait = microseconds(below(2000)), .bytes = waiting.size()};
      case Kind::Narrow:
        return {.wait = microseconds(50 + below(200)), .bytes = 1 + below(8192)};
      case Kind::Crumbs:
        return {.bytes = 1};
      case Kind::Stalled:
        return {.wait = microseconds(1000 + below(below(8) == 0 ? 40000 : 6000)),
                .bytes = waiting.size()};
      case Kind::Calm:
        break;
    }
    return {.bytes = waiting.size()};
  }

  /// Each direction of each connection has a weather of its own.
  [[nodiscard]] static Wiring wiring(Relay& relay, Overheard& overheard, std::uint64_t seed) {
    return [&relay, &overheard, seed](const Connection& connection) {
      const auto of = [&](std::uint64_t direction) {
        std::seed_seq seeds{seed,
                            static_cast<std::uint64_t>(connection.first),
                            static_cast<std::uint64_t>(connection.second),
                            static_cast<std::uint64_t>(connection.control),
                            static_cast<std::uint64_t>(connection.stream),
                            direction};
        std::array<std::uint32_t, 2> word{};
        seeds.generate(word.begin(), word.end());
        return Chaos(std::uint64_t{word[0]} << 32 | word[1], connection.control ? 2 : 40);
      };
      const auto [first, second, control, stream] = connection;
      if (stream != 0) return relay.connect(of(0), of(1));
      return relay.connect(overheard.listen(of(0), control, first, second),
                           overheard.listen(of(1), control, second, first));
    };
  }

 private:
  enum class Kind : std::uint8_t { Calm, Late, Narrow, Crumbs, Stalled };

  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  void change() {
    const std::uint64_t of_100 = below(100);
    if (of_100 < 55) {
      kind_ = Kind::Calm;
      turns_ = 1 + below(30);
    } else if (of_100 < 75) {
      kind_ = Kind::Late;
      turns_ = 1 + below(10);
    } else if (of_100 < 84) {
      kind_ = Kind::Narrow;
      turns_ = 1 + below(30);
    } else if (of_100 < 92) {
      kind_ = Kind::Crumbs;
      turns_ = 1 + below(100);
    } else {
      kind_ = Kind::Stalled;
      turns_ = 1;
    }
  }

  static constexpr auto kRest = std::chrono::microseconds(300);

  std::mt19937_64 random_;
  std::uint64_t lost_;
  TimePoint last_{};
  Kind kind_ = Kind::Calm;
  std::uint64_t turns_ = 0;
};

}  // namespace farandole::testing

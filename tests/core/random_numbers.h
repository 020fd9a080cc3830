/// Numbers for tests, the same in every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace farandole::reference {

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): tests draw millions of numbers under the
/// sanitizers, where those of the standard library take ten times as long.
class QuickRandom {
 public:
  explicit QuickRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// One of 8191 numbers with a mean of 0 and a deviation of 1, by random bits: to draw each anew
/// takes a logarithm.
inline float normal_of(std::uint64_t bits) {
  static const std::vector<float> numbers = [] {
    std::mt19937 random(20240817);  // NOLINT: the same numbers in every run
    std::normal_distribution<float> normal;
    std::vector<float> drawn(8191);
    for (float& number : drawn) number = normal(random);
    return drawn;
  }();
  return numbers[bits % 8191];
}

inline std::vector<float> normal_numbers(std::size_t count, std::uint64_t seed) {
  QuickRandom random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal_of(random());
  return numbers;
}

}  // namespace farandole::reference

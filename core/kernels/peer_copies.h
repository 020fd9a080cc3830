/// Copies into memory that other cores read next, by the way that is faster on this machine now.
///
/// Where the cores share a cache, ordinary stores are: the reader finds the lines there. Where they
/// do not, each store first waits until the other core has given its line up, and stores past the
/// caches are several times faster (decision 80). Which cores the ranks run on, and what these
/// share, can change at any time, and a virtual machine does not say it. So copies are timed.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/copy.h"

namespace farandole {

/// Which of two ways is taken, by the times that they took. The second one must be much faster to
/// be taken, and is left when it no longer is. What counts is the shortest of some copies in turn:
/// any of them may have been interrupted.
class FasterWay {
 public:
  enum Way : unsigned char { First = 0, Second = 1 };

  /// The way of the next copy. Now and then the other one, to know its time.
  [[nodiscard]] Way next() noexcept;
  /// What it took, in any unit.
  void took(Way way, float cost) noexcept;
  /// The way that is taken but for trials.
  [[nodiscard]] Way taken() const noexcept { return taken_; }

 private:
  static constexpr unsigned kCompared = 8;
  static constexpr unsigned kBetweenTrials = 128;
  /// A time of the second way that holds is asked for ever more rarely: a trial costs the reader,
  /// too.
  static constexpr unsigned kMostBetweenTrials = 8192;
  static constexpr float kMuchFaster = 3.0F;
  /// A lone copy of the first way pays for lines that the second one has thrown out of the caches.
  static constexpr float kStillFaster = 2.2F;
  /// Times of the first way that have grown so much since the last turn ask for a trial at once.
  static constexpr float kGrown = 1.5F;

  void decide() noexcept;

  std::array<float, 2> costs_{};  // 0: not known
  float shortest_ = 0.0F;         // of the copies of this turn, which go the way that is taken
  unsigned compared_ = 0;
  Way taken_ = First;
  unsigned until_trial_ = kCompared + 1;
  unsigned between_trials_ = kBetweenTrials;
};

/// Used by one thread at a time.
class PeerCopies {
 public:
  using Copy = void (*)(std::byte* out, const std::byte* in, std::size_t bytes) noexcept;

  /// `ordinary`: how it is copied where the cores share a cache. Any alignment is legal; ranges do
  /// not overlap; zero bytes are legal with any pointers. Ordered before any later store of this
  /// thread.
  void copy(std::byte* out, const std::byte* in, std::size_t bytes,
            Copy ordinary = copy_to_peers) noexcept;

 private:
  /// Smaller copies take too little to be timed.
  static constexpr std::size_t kTimed = std::size_t{32} << 10;
  FasterWay way_;
};

}  // namespace farandole

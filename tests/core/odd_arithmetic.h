/// A thread as a framework may leave it: subnormals are taken for zero, and sums are rounded up.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace farandole {

#if defined(__x86_64__) || defined(__aarch64__)
#define FARANDOLE_ODD_ARITHMETIC 1

/// For its own length. Shares no code with the guard that it is there to test.
class OddArithmetic {
 public:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kOdd = 0x1f80 | 0x8040 | 0x4000;  // FTZ, DAZ, round up
  static Word get() { return _mm_getcsr() & ~Word{0x3f}; }
  static void set(Word word) { _mm_setcsr(word); }
#else
  using Word = std::uint64_t;
  static constexpr Word kOdd = (Word{1} << 24) | (Word{1} << 22);  // FZ, round up
  static Word get() {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#endif
  OddArithmetic() : before_(get()) { set(kOdd); }
  ~OddArithmetic() { set(before_); }
  OddArithmetic(const OddArithmetic&) = delete;
  OddArithmetic& operator=(const OddArithmetic&) = delete;
  /// Nobody has changed it meanwhile, for good.
  [[nodiscard]] static bool lasts() { return get() == kOdd; }

 private:
  Word before_;
};
#endif

}  // namespace farandole

/// The floating-point settings that all arithmetic of the core runs under.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace farandole {

/// The floating-point settings of a thread: rounding, and whether subnormals are kept. The sticky
/// exception flags do not belong to them.
class ArithmeticSettings {
 public:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kDefault = 0x1f80;  ///< of MXCSR: all exceptions masked
  static Word get() noexcept { return _mm_getcsr() & ~Word{0x3f}; }
  static void set(Word word) noexcept { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kDefault = 0;  ///< of FPCR; its sticky flags are in a register of their own
  static Word get() noexcept {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) noexcept { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = std::uint32_t;
  static constexpr Word kDefault = 0;
  static Word get() noexcept { return kDefault; }
  static void set(Word) noexcept {}
#endif
};

/// Sets rounding to nearest, with subnormals, for the length of a call. A framework may have set
/// flush-to-zero on a user thread that drives the engine. Which thread computes depends on timing,
/// and must not change the bits.
class DefaultArithmetic {
 public:
  DefaultArithmetic() noexcept : before_(ArithmeticSettings::get()) {
    if (before_ != ArithmeticSettings::kDefault) {
      ArithmeticSettings::set(ArithmeticSettings::kDefault);
    }
  }
  ~DefaultArithmetic() {
    if (before_ != ArithmeticSettings::kDefault) ArithmeticSettings::set(before_);
  }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  ArithmeticSettings::Word before_;
};

}  // namespace farandole

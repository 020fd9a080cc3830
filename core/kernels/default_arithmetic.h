/// The floating-point settings that all arithmetic of the core runs under.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace rueda {

/// Rounding to nearest, subnormals kept, for the length of a call. A framework may have set
/// flush-to-zero on the very thread that lends itself to the engine; which thread computes is a
/// matter of timing and must not show in the bits.
class DefaultArithmetic {
 public:
#if defined(__x86_64__)
  DefaultArithmetic() noexcept : before_(_mm_getcsr()) {
    if ((before_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultArithmetic() {
    if ((before_ & ~kFlags) != kDefault) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kFlags = 0x3f;  ///< sticky exception flags, not a setting
  static constexpr unsigned kDefault = 0x1f80;
  unsigned before_;
#else
  DefaultArithmetic() noexcept {}
  ~DefaultArithmetic() {}

 public:
#endif
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;
};

}  // namespace rueda

/// One pause of a spinning thread: some tens of nanoseconds, in which the other hardware thread of
/// the core runs faster.
#pragma once

namespace farandole {

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace farandole

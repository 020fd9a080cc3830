/// One breath of a thread that looks again and again: some tens of nanoseconds for the other thread
/// of its core.
#pragma once

namespace rueda {

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace rueda

#include "kernels/copy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace farandole {
namespace {

constexpr std::size_t kLine = 64;
/// Cache lines that are requested ahead of the stores: about as many as a core can wait for.
constexpr std::size_t kBlock = 1024;

inline void prepare_to_write(std::byte* from) noexcept {
#if defined(__x86_64__)
  // The compiler would turn its prefetch for writing into one for reading, as not every processor
  // of the architecture has this instruction. Processors without it treat it as a no-op.
  asm volatile("prefetchw (%0)" : : "r"(from));
#else
  __builtin_prefetch(from, 1);
#endif
}

}  // namespace

void copy_to_peers(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
  while (bytes > kBlock) {
    const std::size_t next = std::min(kBlock, bytes - kBlock);
    for (std::size_t at = 0; at < next; at += kLine) prepare_to_write(out + kBlock + at);
    std::memcpy(out, in, kBlock);
    out += kBlock;
    in += kBlock;
    bytes -= kBlock;
  }
  if (bytes != 0) std::memcpy(out, in, bytes);
}

void copy_plain(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(out, in, bytes);
}

void copy_streaming(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  const auto misaligned = reinterpret_cast<std::uintptr_t>(out) % kLine;
  const std::size_t head = std::min(bytes, misaligned == 0 ? 0 : kLine - misaligned);
  if (head != 0) std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* const from = reinterpret_cast<const __m128i*>(in + at);
    auto* const to = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  if (at < bytes) std::memcpy(out + at, in + at, bytes - at);
  _mm_sfence();  // these stores are not ordered with the flags that follow
#else
  if (bytes != 0) std::memcpy(out, in, bytes);
#endif
}

std::size_t streaming_bytes() noexcept {
  static const std::size_t found = [] {
    constexpr long kUsual = 1L << 20;  // if the system does not know its caches
    const long second_level = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return static_cast<std::size_t>(second_level > 0 ? second_level : kUsual) * 4;
  }();
  return found;
}

void copy_out(std::byte* out, const std::byte* in, std::size_t bytes, bool streaming) noexcept {
  if (streaming) {
    copy_streaming(out, in, bytes);
  } else {
    copy_plain(out, in, bytes);
  }
}

}  // namespace farandole

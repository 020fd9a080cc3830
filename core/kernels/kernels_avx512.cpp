// 64-byte vectors for processors with AVX-512 F, BW, VL and DQ.
#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include <immintrin.h>

#define FARANDOLE_VECTOR_BYTES 64
#include "kernels/kernels_impl.inl"

namespace farandole::kernels {

const Table* avx512_table() noexcept { return &kTable; }

}  // namespace farandole::kernels

#else

namespace farandole::kernels {

const Table* avx512_table() noexcept { return nullptr; }

}  // namespace farandole::kernels

#endif

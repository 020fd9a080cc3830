// 32-byte vectors for processors with AVX2, F16C and FMA (the latter is never used, see kernels.h).
#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#define FARANDOLE_VECTOR_BYTES 32
#include "kernels/kernels_impl.inl"

namespace farandole::kernels {

const Table* avx2_table() noexcept { return &kTable; }

}  // namespace farandole::kernels

#else

namespace farandole::kernels {

const Table* avx2_table() noexcept { return nullptr; }

}  // namespace farandole::kernels

#endif

// What every processor of the architecture runs: 16-byte vectors (SSE2 on x86-64, NEON on arm64).
#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

#define FARANDOLE_VECTOR_BYTES 16
#include "kernels/kernels_impl.inl"

namespace farandole::kernels {

const Table* baseline_table() noexcept { return &kTable; }

}  // namespace farandole::kernels

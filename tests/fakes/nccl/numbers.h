/// Arithmetic on the numbers that NCCL knows, by the code of their type.
#pragma once

#include <cstddef>

namespace farandole::fakes {

/// 0: no such type.
[[nodiscard]] std::size_t size_of(int type) noexcept;

/// into[i] = into[i] op from[i]; ncclAvg adds.
void combine(int type, int op, std::byte* into, const std::byte* from, std::size_t count);
void divide(int type, std::byte* numbers, std::size_t count, int divisor);
/// `factor`: one number of that type.
void multiply(int type, std::byte* numbers, std::size_t count, const std::byte* factor);

}  // namespace farandole::fakes

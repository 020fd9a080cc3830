/// The vocabulary of the engine: element types, reductions, shapes, ranks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rueda {

/// Position of a process in the world, 0 … size-1.
using Rank = std::int32_t;

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

/// Element types. The numbers are part of the interface of the native module.
enum class DType : std::uint8_t {
  UInt8 = 0,
  Int8 = 1,
  UInt16 = 2,
  Int16 = 3,
  Int32 = 4,
  Int64 = 5,
  Float16 = 6,
  BFloat16 = 7,
  Float32 = 8,
  Float64 = 9,
  Bool = 10,
};
inline constexpr std::size_t kDTypes = 11;

[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  constexpr std::array<std::uint8_t, kDTypes> sizes{1, 1, 2, 2, 4, 8, 2, 2, 4, 8, 1};
  return sizes[static_cast<std::size_t>(dtype)];
}
[[nodiscard]] constexpr std::string_view name_of(DType dtype) noexcept {
  constexpr std::array<std::string_view, kDTypes> names{"uint8",   "int8",    "uint16",  "int16",
                                                        "int32",   "int64",   "float16", "bfloat16",
                                                        "float32", "float64", "bool"};
  return names[static_cast<std::size_t>(dtype)];
}

/// How values combine. The numbers are part of the public interface (`hvd.Average == 0`).
enum class ReduceOp : std::uint8_t {
  Average = 0,
  Sum = 1,
  Adasum = 2,
  Min = 3,
  Max = 4,
  Product = 5
};
inline constexpr std::uint8_t kReduceOps = 6;

[[nodiscard]] constexpr std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::array<std::string_view, kReduceOps> names{"Average", "Sum", "Adasum",
                                                           "Min",     "Max", "Product"};
  return names[static_cast<std::size_t>(op)];
}

/// What a backend is asked to compute: out = postscale * reduce(prescale * x).
/// `op` is never Average here, except on Bool, where it means logical and.
struct Reduction {
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Kinds of operation. The numbers are part of the interface of the native module.
enum class Kind : std::uint8_t {
  Allreduce = 0,
  Allgather = 1,
  Broadcast = 2,
  Alltoall = 3,
  Reducescatter = 4,
  Barrier = 5,
  Join = 6,
  Adasum = 7,  ///< an allreduce by Adasum; users ask for it by ReduceOp::Adasum
  AddProcessSet = 8,
  RemoveProcessSet = 9,
  Reduce = 10,
};

/// Operations of the world that change which process sets there are.
[[nodiscard]] constexpr bool is_set_change(Kind kind) noexcept {
  return kind == Kind::AddProcessSet || kind == Kind::RemoveProcessSet;
}

/// Where a tensor lives; ranks must agree on it for one operation. The numbers are part of the
/// interface of the native module.
enum class Device : std::uint8_t { Host = 0, Cuda = 1, Xpu = 2, Mps = 3 };
inline constexpr std::uint8_t kDevices = 4;

[[nodiscard]] constexpr std::string_view name_of(Device device) noexcept {
  constexpr std::array<std::string_view, kDevices> names{"CPU", "CUDA", "XPU", "MPS"};
  return names[static_cast<std::size_t>(device)];
}

/// How the caller learns of the end. The numbers are part of the interface of the native module.
enum class Mode : std::uint8_t {
  Asynchronous = 0,  ///< by a handle
  Awaited = 1,       ///< by a handle that somebody will wait for at once
  Blocking = 2,      ///< 0: it is over, and there is nothing to take; else a handle to go on with
  Callback = 3,      ///< 0: it is over without an error; else `on_done` is called
};

using Shape = std::vector<std::int64_t>;

/// "[17, 3]"
[[nodiscard]] std::string to_string(const Shape& shape);
[[nodiscard]] std::int64_t element_count(const Shape& shape) noexcept;

}  // namespace rueda

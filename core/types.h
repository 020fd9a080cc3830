/// The vocabulary of the engine: element types, reductions, shapes, ranks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace farandole {

/// Position of a process in the world, 0 … size-1.
using Rank = std::int32_t;

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

/// Element types. The numbers are part of the interface of the native module. Those from UInt32 on
/// are only moved: nothing computes with them.
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
  UInt32 = 11,
  UInt64 = 12,
  Complex64 = 13,
  Complex128 = 14,
  Float8E4M3FN = 15,
  Float8E5M2 = 16,
  Float8E4M3FNUZ = 17,
  Float8E5M2FNUZ = 18,
};
inline constexpr std::size_t kDTypes = 19;
/// The first ones, which can be reduced.
inline constexpr std::size_t kReducedDTypes = 11;

/// What the core knows of an element type.
struct DTypeFacts {
  std::string_view name;  ///< that of NumPy, or of ml_dtypes
  std::uint8_t size;
};
inline constexpr std::array<DTypeFacts, kDTypes> kDTypeFacts{{
    {"uint8", 1},           {"int8", 1},        {"uint16", 2},
    {"int16", 2},           {"int32", 4},       {"int64", 8},
    {"float16", 2},         {"bfloat16", 2},    {"float32", 4},
    {"float64", 8},         {"bool", 1},        {"uint32", 4},
    {"uint64", 8},          {"complex64", 8},   {"complex128", 16},
    {"float8_e4m3fn", 1},   {"float8_e5m2", 1}, {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
}};

[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  return kDTypeFacts[static_cast<std::size_t>(dtype)].size;
}
[[nodiscard]] constexpr std::string_view name_of(DType dtype) noexcept {
  return kDTypeFacts[static_cast<std::size_t>(dtype)].name;
}
[[nodiscard]] constexpr bool moved_only(DType dtype) noexcept {
  return static_cast<std::size_t>(dtype) >= kReducedDTypes;
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

/// Operations that compute with elements.
[[nodiscard]] constexpr bool reduces(Kind kind) noexcept {
  return kind == Kind::Allreduce || kind == Kind::Reducescatter || kind == Kind::Adasum ||
         kind == Kind::Reduce;
}

/// Operations in which a rank may take part without bringing anything.
[[nodiscard]] constexpr bool may_be_absent(Kind kind) noexcept {
  return kind == Kind::Allreduce || kind == Kind::Adasum;
}

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

}  // namespace farandole

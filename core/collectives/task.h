/// One tensor of a batch, and the memory of its result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/signature.h"
#include "result.h"

namespace farandole {

/// Gives memory for a result whose size is known only when the operation runs.
/// The thread that drives the engine calls it: it must not block or take a language's lock.
class OutputAllocator {
 public:
  virtual ~OutputAllocator() = default;
  /// Memory for a contiguous tensor; stays valid at least until the operation completes.
  virtual Result<std::byte*> allocate(const Shape& shape, DType dtype) = 0;
};

/// What all members have told of one tensor before the operation began, by set rank.
struct Told {
  std::vector<std::int64_t> numbers;     ///< see FastRule::tell; empty: none
  std::vector<std::uint64_t> addresses;  ///< of their inputs, in their memory; empty: not said
};

struct Task {
  std::shared_ptr<const Signature> signature;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  ///< null: ask the allocator
  OutputAllocator* allocator = nullptr;
  /// Alltoall: how many rows go to each member; empty: equally many.
  std::span<const std::int64_t> splits = {};
  /// What all members have told of it; null: nothing yet.
  const Told* told = nullptr;
  /// Alltoall: memory for the number of rows that came from each member; null: not wanted.
  std::int32_t* received = nullptr;
};

/// Memory for the result of a task, a tensor of that shape.
[[nodiscard]] inline Result<std::byte*> output_of(const Task& task, const Shape& shape) {
  if (task.out != nullptr) return task.out;
  return task.allocator->allocate(shape, task.signature->dtype);
}

}  // namespace farandole

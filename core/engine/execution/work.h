/// One submission of the user: a handle, and the tensors behind it.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/task.h"
#include "devices/devices.h"
#include "memory/host_pool.h"

namespace farandole {

/// Counts submissions of this process from 1, failed ones included.
using Handle = std::int64_t;

/// A result that the engine allocated.
struct Output {
  HostBuffer buffer;
  Shape shape;
  DType dtype = DType::Float32;
  /// The result belongs on that device, and the buffer is pinned host memory: see
  /// EngineDevice::deliver(). Null: it is where it belongs.
  std::shared_ptr<EngineDevice> device = {};
  bool absent = false;  ///< no rank has brought anything: there is no result
};

/// Gives memory for result `index`, whose size is known only now; null: there is none. Called by
/// the holder of the progress lock: must not block.
using OutputProvider =
    std::function<std::byte*(std::size_t index, const Shape& shape, DType dtype)>;

/// What has been started for a tensor on `device` is complete at that point, not before.
struct DeviceEnd {
  std::shared_ptr<const DevicePoint> point;
  std::shared_ptr<EngineDevice> device;
  bool on_host = false;  ///< see Tensor::streamless
};

/// What a handle stands for. Filled by the holder of the progress lock; read by others once `done`
/// is set.
struct Work {
  Handle handle = 0;
  std::string name;  ///< full name, of the group if it is one
  std::atomic<bool> done{false};
  std::size_t remaining = 1;  ///< tensors that are not complete
  std::optional<Error> error;
  /// It has failed, and a verb of a foreign backend that is stuck may still touch its memory, at
  /// any time: whoever owns that must never give it back.
  bool in_use = false;
  std::vector<Output> outputs;        ///< by tensor; without data() where the user gave the memory
  std::optional<std::int64_t> value;  ///< of operations that end with a number: join, set changes
  std::vector<std::uint64_t> tickets;
  std::vector<DeviceEnd> ends;               ///< of tensors on devices
  std::function<void(const Work&)> on_done;  ///< runs on the notifier
  OutputProvider provide;                    ///< memory of results; null: the engine allocates
  std::atomic<bool> polled{false};           ///< the first poll says no, see Engine::poll()

  /// Once it is done: the caller has to wait on the host for a device.
  [[nodiscard]] bool ends_on_host() const noexcept {
    return std::ranges::any_of(ends, &DeviceEnd::on_host);
  }
  /// Once it is done: there is something to take().
  [[nodiscard]] bool has_result() const noexcept {
    return value.has_value() || std::ranges::any_of(outputs, [](const Output& output) {
             return output.buffer.data() != nullptr;
           });
  }
};

/// Memory for result `index` of a work, a tensor of that shape; from `pool` unless the work says
/// where it comes from. `device`: where it belongs; null: in host memory.
[[nodiscard]] inline Result<std::byte*> memory_for(Work& work, std::size_t index, HostPool& pool,
                                                   const Shape& shape, DType dtype,
                                                   const std::string& name,
                                                   std::shared_ptr<EngineDevice> device = {}) {
  Output& output = work.outputs[index];
  const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
  std::byte* data = nullptr;
  if (work.provide) {
    data = work.provide(index, shape, dtype);
  } else {
    output.buffer = pool.take(bytes);
    data = output.buffer.data();
  }
  if (data == nullptr) {
    return Error{.code = Code::Internal,
                 .message = "no memory for a result of " + std::to_string(bytes) +
                            " bytes, shape " + to_string(shape),
                 .tensor = name};
  }
  output.shape = shape;
  output.dtype = dtype;
  output.device = std::move(device);
  return data;
}

/// One tensor of a submission, from submit() to the end of its batch.
struct Entry final : OutputAllocator {
  std::string name;
  std::shared_ptr<const Signature> signature;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<std::int64_t> splits;  ///< see Task
  Told told;                         ///< see Task
  std::int32_t* received = nullptr;
  std::shared_ptr<EngineDevice> device;  ///< null: in host memory
  void* stream = nullptr;                ///< see Tensor
  bool streamless = false;               ///< see Tensor
  std::shared_ptr<const DevicePoint> ready;
  std::shared_ptr<Work> work;
  std::size_t index = 0;  ///< in the work
  std::shared_ptr<HostPool> pool;

  [[nodiscard]] Task task() noexcept {
    return {.signature = signature,
            .in = in,
            .out = out,
            .allocator = this,
            .splits = splits,
            .told = &told,
            .received = received};
  }

  Result<std::byte*> allocate(const Shape& shape, DType dtype) override {
    return memory_for(*work, index, *pool, shape, dtype, name, device);
  }
};

}  // namespace farandole

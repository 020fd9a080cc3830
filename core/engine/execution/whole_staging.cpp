#include "engine/execution/whole_staging.h"

#include <utility>
#include <vector>

#include "backends/failed_operation.h"
#include "backends/staged/pipeline.h"
#include "backends/staged/staged_memory.h"
#include "rounding.h"

namespace farandole {

namespace {

constexpr std::size_t kAligned = 64;  // bytes

/// All tensors are one chunk.
class WholePlan final : public StagedPlan {
 public:
  WholePlan(StagedBackend& backend, const Collective& collective, std::span<const Task> tasks)
      : backend_(backend),
        collective_(collective),
        tasks_(tasks.begin(), tasks.end()),
        memory_(backend.device(), total(tasks)) {}

  std::size_t chunks() const override { return 1; }

  StagedChunk chunk(std::size_t /*number*/, std::byte* /*slot*/) override {
    StagedChunk chunk;
    std::byte* memory = memory_.data();
    if (memory == nullptr) {
      chunk.run = [] {
        return failed_operation(Code::Backend,
                                "no pinned host memory to copy tensors of a device "
                                "through");
      };
      return chunk;
    }
    for (Task& task : tasks_) {
      const std::size_t bytes = task.signature->bytes();
      if (bytes == 0) continue;
      std::byte* const here = std::exchange(memory, memory + round_up(bytes, kAligned));
      if (const auto* const in = std::exchange(task.in, here); in != here) {
        chunk.in.push_back({in, here, bytes});
      }
      const Shape shape = shape_of_result(*task.signature, backend_.members());
      auto out = output_of(task, shape);
      if (!out) {
        chunk.run = [error = std::move(out).error()] {
          return std::make_unique<FailedOperation>(Error(error));
        };
        return chunk;
      }
      task.out = here;
      const std::size_t given =
          static_cast<std::size_t>(element_count(shape)) * size_of(task.signature->dtype);
      const bool by_host = backend_.device() != nullptr && !backend_.device()->holds(*out);
      chunk.out.push_back({here, *out, given, by_host});
    }
    chunk.run = [this] { return collective_.start(backend_.host(), tasks_); };
    return chunk;
  }

 private:
  static std::size_t total(std::span<const Task> tasks) {
    std::size_t bytes = kAligned;
    for (const Task& task : tasks) bytes += round_up(task.signature->bytes(), kAligned);
    return bytes;
  }

  StagedBackend& backend_;
  const Collective& collective_;
  std::vector<Task> tasks_;  // on the host
  StagedMemory memory_;
};

}  // namespace

std::unique_ptr<Operation> stage_whole(StagedBackend& backend, const Collective& collective,
                                       std::span<const Task> tasks) {
  return backend.run(std::make_unique<WholePlan>(backend, collective, tasks));
}

}  // namespace farandole

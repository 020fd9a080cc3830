/// An operation on memory of a device, by way of the host: chunk after chunk is copied to pinned
/// host memory, a host backend works on it there, and the result is copied back. The three overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backends/device_wait.h"
#include "backends/operation.h"
#include "devices/devices.h"

namespace farandole {

struct StagedCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  bool by_host = false;  ///< from host memory to host memory; only of results
};

/// `run` works on the host, after the copies `in` and before the copies `out`.
struct StagedChunk {
  std::vector<StagedCopy> in;
  std::function<std::unique_ptr<Operation>()> run;
  std::vector<StagedCopy> out;
  bool at_once = false;  ///< `run` reads nothing that comes from a stream
};

/// How an operation is cut. All members cut it alike, wherever their memory lies.
class StagedPlan {
 public:
  virtual ~StagedPlan() = default;
  [[nodiscard]] virtual std::size_t chunks() const = 0;
  /// That chunk, with host memory of EngineDevice::kSlotBytes to work in.
  [[nodiscard]] virtual StagedChunk chunk(std::size_t number, std::byte* slot) = 0;
};

class StagedPipeline final : public Operation {
 public:
  /// `device`: null on a rank that has no tensor on a device (it has joined): then there is nothing
  /// to copy from or to one.
  StagedPipeline(EngineDevice* device, std::unique_ptr<StagedPlan> plan);

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override;
  [[nodiscard]] std::optional<TimePoint> due() const override {
    const auto at = wait_.due();
    const auto running = running_ ? running_->due() : std::nullopt;
    return at && running ? std::min(*at, *running) : (at ? at : running);
  }

 private:
  struct UnderWay {
    StagedChunk chunk;
    EngineDevice::Slot* slot = nullptr;
    std::shared_ptr<const DevicePoint> ready = {};  // its bytes are on the host; null: they were
  };
  Result<bool> load();
  Result<bool> load_next(EngineDevice::Slot& slot);
  Result<bool> run();
  Result<void> store(UnderWay& stored);
  [[nodiscard]] Result<Step> blocked();

  EngineDevice* device_;
  std::unique_ptr<StagedPlan> plan_;
  std::size_t chunks_;
  std::size_t loaded_ = 0;  // chunks
  std::deque<UnderWay> under_way_;
  std::unique_ptr<std::byte[]> host_memory_;  // of own_slot_, where there is no device
  EngineDevice::Slot own_slot_;
  EngineDevice::Slot* next_slot_ = nullptr;  // taken, not filled yet
  DeviceWait wait_;
  std::unique_ptr<Operation> running_;  // of the first one under way; ends before its memory
};

}  // namespace farandole

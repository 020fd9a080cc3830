/// Batches of tensors on devices: which backend serves them, and what their streams wait for.
///
/// The members of a set agree about NCCL and about copies between peers at its first batch on
/// devices, through the set's backend in host memory. Holder of the progress lock only.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/nccl/nccl.h"
#include "backends/peer/peer.h"
#include "backends/staged/staged.h"
#include "collectives/collective.h"
#include "engine/base/log.h"
#include "engine/execution/device_options.h"
#include "engine/execution/work.h"

namespace farandole {

class DeviceBatches {
 public:
  DeviceBatches(DeviceOptions options, const Log& log) : options_(std::move(options)), log_(log) {}

  /// One batch. What it names outlives it.
  struct Batch {
    std::int32_t process_set = 0;
    Backend& host;  ///< of the set
    const Collective& collective;
    std::span<const std::unique_ptr<Entry>> entries;  ///< null: this rank has joined
    std::span<Task> tasks;
  };
  [[nodiscard]] std::unique_ptr<Operation> start(const Batch& batch);
  /// The batch is over, or has been dropped: what owners of its tensors put into their streams from
  /// now on comes after it. Nothing happens if it was not started here.
  void end(std::span<const std::unique_ptr<Entry>> entries);
  /// The backend of the batch that was started last.
  [[nodiscard]] const Backend* backend() const noexcept { return serving_; }
  /// The set has had its last batch, and its members are about to meet: memory of others is let go.
  void close(std::int32_t process_set) noexcept;
  /// The same of all sets.
  void close_all() noexcept;
  /// What the batch under way waits for beside the host's backend, for messages; or empty.
  [[nodiscard]] std::string_view doing() const noexcept {
    if (connecting_) return "NCCL connects the ranks";
    return serving_ != nullptr && serving_->name() == "nccl" ? "NCCL is at work on the device" : "";
  }
  /// The set is gone.
  void forget(std::int32_t process_set);
  /// Waits for what NCCL has on streams; false: it goes on beyond the deadline.
  [[nodiscard]] bool settle(TimePoint deadline);
  /// The world has failed.
  void abort() noexcept;
  /// In a forked child: neither the driver nor NCCL works there.
  void abandon() noexcept;

 private:
  class Opening;
  /// What the members have asked for one kind of backend.
  struct Choice {
    std::array<bool, kDeviceWays.size()>
        wanted{};  ///< by way: a rank has asked for it and for nothing else
    std::array<bool, kDeviceWays.size()> allowed{};  ///< by way: no rank has asked for another one
    std::string why_not;                             ///< it does not serve the set
    [[nodiscard]] bool serves(std::size_t way) const noexcept {
      return allowed[way] && why_not.empty();
    }
  };
  /// What a set does with tensors of devices.
  struct Set {
    /// By device; none: this rank takes part without one.
    std::map<const EngineDevice*, std::unique_ptr<StagedBackend>> staged;
    std::unique_ptr<NcclBackend> nccl;  ///< null: NCCL does not serve this set
    std::unique_ptr<PeerBackend> peer;  ///< null: nor do copies between peers
    bool agreed = false;
    Choice by_nccl;
    Choice by_peer;
  };
  /// Of a set that is gone, until its stream has come to its end: that may wait for a stream of the
  /// user, and the engine waits for none.
  struct Retired {
    std::unique_ptr<NcclBackend> nccl;
    std::shared_ptr<const DevicePoint> end;
  };
  [[nodiscard]] std::unique_ptr<Operation> run(Set& set, const Batch& batch);
  /// The backend that serves the batch; null: the staged one. Fails if another one was asked for
  /// that cannot.
  [[nodiscard]] static Result<DeviceBackend*> choose(const Set& set, const Batch& batch);
  [[nodiscard]] StagedBackend& staged(Set& set, Backend& host,
                                      const std::shared_ptr<EngineDevice>& device);
  void say(const Set& set, const Members& members, const NcclLibrary* library) const;
  Result<void> lend_memory(const DeviceBackend& backend, const Batch& batch);

  const DeviceOptions options_;
  const Log& log_;
  std::map<std::int32_t, Set> sets_;
  std::vector<Retired> retired_;
  DeviceBackend* serving_ = nullptr;
  bool connecting_ = false;
  std::vector<HostBuffer> zeros_;  // of the batch under way: what a joined rank brings to NCCL
};

}  // namespace farandole

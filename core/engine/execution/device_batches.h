/// Batches of tensors on devices: which backend serves them, and what their streams wait for.
///
/// The members of a set agree at its first batch on devices, through the set's backend in host
/// memory, and open those of registry.h that settings ask for. Holder of the progress lock only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/device_backend.h"
#include "backends/device_options.h"
#include "backends/registry.h"
#include "collectives/collective.h"
#include "engine/base/log.h"
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
  [[nodiscard]] std::string_view doing() const noexcept;
  /// The set is gone.
  void forget(std::int32_t process_set);
  /// Waits for what backends have on streams of their own; false: it goes on beyond the deadline.
  [[nodiscard]] bool settle(TimePoint deadline);
  /// The world has failed.
  void abort() noexcept;
  /// In a forked child: neither the driver nor libraries over it work there.
  void abandon() noexcept;

 private:
  class Opening;
  /// A backend of registry.h, as the members of a set have agreed about it.
  struct Choice {
    std::array<bool, kDeviceWays.size()>
        wanted{};  ///< by way: a rank has asked for it and for nothing else
    std::array<bool, kDeviceWays.size()> allowed{};  ///< by way: no rank has asked for another one
    std::string why_not;                             ///< it does not serve the set
    std::unique_ptr<DeviceBackend> backend;          ///< null: it does not
  };
  /// What a set does with tensors of devices.
  struct Set {
    /// By device; none: this rank takes part without one.
    std::map<const EngineDevice*, std::unique_ptr<DeviceBackend>> staged;
    std::vector<Choice> choices{device_backends().size()};  ///< by row; end before `staged`
    bool agreed = false;
  };
  /// Of a set that is gone, until its stream has come to its end: that may wait for a stream of the
  /// user, and the engine waits for none.
  struct Retired {
    std::unique_ptr<DeviceBackend> backend;
    std::shared_ptr<const DevicePoint> end;
  };
  [[nodiscard]] std::unique_ptr<Operation> run(Set& set, const Batch& batch);
  /// A backend of registry.h; none: the staged one.
  using Row = std::optional<std::size_t>;
  /// What serves the batch. Fails if another one was asked for that cannot.
  [[nodiscard]] static Result<Row> choose(const Set& set, const Batch& batch);
  [[nodiscard]] static DeviceBackend& staged(Set& set, Backend& host,
                                             const std::shared_ptr<EngineDevice>& device);
  void say(const Set& set, const Members& members) const;
  Result<void> lend_memory(const DeviceBackend& backend, const Batch& batch);
  template <class Visitor>
  void each_backend(Visitor visit) const;

  const DeviceOptions options_;
  const Log& log_;
  std::map<std::int32_t, Set> sets_;
  std::vector<Retired> retired_;
  DeviceBackend* serving_ = nullptr;
  const DeviceOpening* opening_ = nullptr;  // under way
  std::vector<HostBuffer> zeros_;           // of the batch under way: what a joined rank brings
};

}  // namespace farandole

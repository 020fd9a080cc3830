/// The memory that the members of a set read from each other: a buffer of each, in slots that are
/// used in turn.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/device_backend.h"
#include "backends/device_options.h"
#include "devices/devices.h"
#include "devices/ipc_buffer.h"

namespace farandole {

class PeerBuffers {
 public:
  /// One is filled while the others' readers are in the other one.
  static constexpr std::size_t kSlots = 2;
  static constexpr std::size_t kSlotBytes = 2 * EngineDevice::kSlotBytes;
  static constexpr std::size_t kBytes = kSlots * kSlotBytes;

  /// Those of the other members by set rank; data() of the own entry is not used. A member of this
  /// process lends its buffer without opening it.
  struct Other {
    std::unique_ptr<OpenedIpcBuffer> opened;
    const std::byte* data = nullptr;
  };

  PeerBuffers(std::shared_ptr<EngineDevice> device, std::unique_ptr<IpcBuffer> own,
              std::vector<Other> others) noexcept
      : device_(std::move(device)), own_(std::move(own)), others_(std::move(others)) {}

  [[nodiscard]] const std::shared_ptr<EngineDevice>& device() const noexcept { return device_; }
  /// Where chunk `number` of this member goes.
  [[nodiscard]] std::byte* own(std::size_t number) const noexcept {
    return own_->data() + offset(number);
  }
  /// Where chunk `number` of that member is.
  [[nodiscard]] const std::byte* of(int member, std::size_t number) const noexcept {
    return others_[static_cast<std::size_t>(member)].data + offset(number);
  }
  /// No stream reads buffers of others any more, now or later. Whose they are may free them when
  /// all others have come here.
  void close() noexcept { others_.clear(); }
  /// The same after an operation that was dropped: nobody can tell whether the others still read
  /// the own one, as they no longer come anywhere together.
  void close_unmet() {
    close();
    IpcBuffer::hand_on(std::move(own_));
  }

 private:
  [[nodiscard]] static constexpr std::size_t offset(std::size_t number) noexcept {
    return number % kSlots * kSlotBytes;
  }

  std::shared_ptr<EngineDevice> device_;
  std::unique_ptr<IpcBuffer> own_;
  std::vector<Other> others_;
};

/// Return why no member can copy from another one, as far as all know it before they try; empty:
/// nothing. The same on all.
[[nodiscard]] std::string obstacle_to_peer(const DeviceSet& set);

/// The members of a set make buffers and open those of the others. Either all can, or all know who
/// cannot and why.
class PeerConnecting final : public DeviceOpening {
 public:
  /// All members have a device, and are on one host.
  explicit PeerConnecting(DeviceSet set);
  ~PeerConnecting() override;

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override { return step_->waiting_for(); }
  [[nodiscard]] std::optional<TimePoint> due() const override { return step_->due(); }

 private:
  enum class Phase : std::uint8_t { Telling, Answering, Closing };
  struct Notice;
  struct Answer;
  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<void> open();
  [[nodiscard]] std::string first_problem() const;
  void answer();

  DeviceSet set_;
  Phase phase_ = Phase::Telling;
  std::unique_ptr<Notice> own_notice_;
  std::vector<Notice> notices_;  // by member
  std::unique_ptr<Answer> own_answer_;
  std::vector<Answer> answers_;  // by member
  std::unique_ptr<IpcBuffer> own_;
  std::vector<PeerBuffers::Other> others_;
  std::unique_ptr<Operation> step_;  // ends before what it writes
};

/// See registry.h.
[[nodiscard]] std::unique_ptr<DeviceOpening> open_peer(const DeviceSet& set,
                                                       const DeviceOptions& options);

}  // namespace farandole

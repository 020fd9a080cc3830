/// The memory that the members of a set read from each other: a buffer of each, in slots that are
/// used in turn.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

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

}  // namespace farandole

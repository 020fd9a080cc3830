/// One device, as an engine uses it: streams for copies to and from the host, the memory that they
/// go through, and results that wait for their owner.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "devices/device_context.h"
#include "devices/waker.h"
#include "memory/host_pool.h"
#include "mutex.h"

namespace farandole {

class EngineDevice {
 public:
  /// Chunks of a staged operation that are under way at the same time.
  static constexpr std::size_t kSlots = 4;
#if defined(FARANDOLE_SANITIZED)
  // Each byte costs a hundred times as much there, and as many chunks find as much.
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
#else
  static constexpr std::size_t kSlotBytes = std::size_t{2} << 20;
#endif

  /// Fails if the device lacks memory or handles for what every operation needs.
  [[nodiscard]] static Result<std::shared_ptr<EngineDevice>> open(
      std::shared_ptr<DeviceContext> context, std::shared_ptr<Waker> waker);
  EngineDevice(std::shared_ptr<DeviceContext> context, std::shared_ptr<Waker> waker);
  /// Waits as settle() does, unless that was in vain.
  ~EngineDevice();
  EngineDevice(const EngineDevice&) = delete;
  EngineDevice& operator=(const EngineDevice&) = delete;

  // Any thread.

  [[nodiscard]] DeviceContext& context() const noexcept { return *context_; }
  [[nodiscard]] bool holds(const void* address) const noexcept { return context_->holds(address); }
  /// Of pinned host memory. It may be given back as soon as no stream uses it.
  [[nodiscard]] HostPool& pinned() const noexcept { return *pinned_; }
  [[nodiscard]] const std::shared_ptr<HostPool>& pinned_pool() const noexcept { return pinned_; }
  /// Of memory of the device, which may be given back in the same way.
  [[nodiscard]] HostPool& memory() const noexcept { return *memory_; }
  [[nodiscard]] const std::shared_ptr<HostPool>& memory_pool() const noexcept { return memory_; }
  /// Copies a result to where its owner wants it, after what is in the stream and before what comes
  /// into it. Keeps the memory until it is copied.
  Result<void> deliver(HostBuffer from, std::size_t bytes, void* to, void* stream);
  /// Waits for what the device still does for this one: it may come after a kernel of the user that
  /// never ends. False: the time was over before it. Then what the device uses stays for ever.
  [[nodiscard]] bool settle(TimePoint deadline);

  // By the holder of the progress lock.

  /// Gives back what has been copied since: large memory is taken anew from the driver only if it
  /// must be.
  void collect();
  /// Keeps memory until all copies that have been started so far are done.
  void keep(HostBuffer memory) noexcept;
  /// The same of what is in that stream.
  void keep(HostBuffer memory, void* stream) noexcept;
  /// Copies to the host go into this stream, copies to the device into that one.
  [[nodiscard]] void* to_host() const noexcept { return to_host_->get(); }
  [[nodiscard]] void* to_device() const noexcept { return to_device_->get(); }
  /// Tells the engine when the device has come to that point. No copy comes after the ring: what
  /// is in the streams goes on meanwhile.
  Result<void> ring_at(const DevicePoint& point);

  struct Slot {
    std::byte* memory = nullptr;                ///< kSlotBytes
    std::shared_ptr<const DevicePoint> stored;  ///< its last bytes have gone to the device; or null
  };
  /// They are used in turn, by one operation after another.
  [[nodiscard]] Slot& slot(std::size_t number) noexcept { return slots_[number % kSlots]; }
  /// The number of the next one.
  [[nodiscard]] std::size_t next_slot() noexcept { return next_slot_++; }

 private:
  void keep(HostBuffer memory, std::shared_ptr<const DevicePoint> until);

  struct Kept {
    HostBuffer memory;
    std::shared_ptr<const DevicePoint> until;
  };

  std::shared_ptr<DeviceContext> context_;
  std::shared_ptr<Waker> waker_;
  std::shared_ptr<HostPool> pinned_;
  std::shared_ptr<HostPool> memory_;
  std::unique_ptr<DeviceStream> to_host_;
  std::unique_ptr<DeviceStream> to_device_;
  std::unique_ptr<DeviceStream> bell_;  // nothing but rings
  HostBuffer slot_memory_;
  std::array<Slot, kSlots> slots_;
  std::size_t next_slot_ = 0;
  Mutex mutex_;
  std::vector<Kept> kept_ FARANDOLE_GUARDED_BY(mutex_);  // results that are being copied
  bool left_behind_ FARANDOLE_GUARDED_BY(mutex_) = false;
};

}  // namespace farandole

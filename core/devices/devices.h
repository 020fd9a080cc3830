/// Devices that an engine has met in submissions: streams for copies to and from the host, the
/// memory that they go through, and results that wait for their owner. A process whose tensors are
/// all in host memory never looks for a driver.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_context.h"
#include "memory/host_pool.h"
#include "mutex.h"
#include "types.h"

namespace farandole {

/// Tells the engine from a thread of the driver that a device has come to a point.
///
/// Outlives the engine where work of the device does. Any thread.
class Waker {
 public:
  explicit Waker(std::function<void()> ring) : ring_(std::move(ring)) {}
  void ring() {
    const Lock lock(mutex_);
    if (ring_) ring_();
  }
  /// Nobody is told any more, once it returns.
  void disconnect() {
    const Lock lock(mutex_);
    ring_ = nullptr;
  }

 private:
  Mutex mutex_;  // also held while it rings, which takes no lock
  std::function<void()> ring_ FARANDOLE_GUARDED_BY(mutex_);
};

/// One device, as an engine uses it: streams for copies to and from the host, the memory that they
/// go through, and results that wait for their owner.
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

class Devices {
 public:
  /// `library`: the driver of CUDA. `ring`: tells the engine that a device has come to a point; any
  /// thread calls it.
  Devices(std::string library, std::function<void()> ring);
  ~Devices() { disconnect(); }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  /// That device, opened when it is asked for first. Fails if nothing here serves its kind or it
  /// cannot be used. Any thread.
  [[nodiscard]] Result<std::shared_ptr<EngineDevice>> at(Device kind, int index);
  /// Nobody is told any more, once it returns.
  void disconnect() {
    if (waker_) waker_->disconnect();
  }
  /// Waits for the devices; the numbers of those that go on beyond the deadline.
  [[nodiscard]] std::vector<int> settle(TimePoint deadline);
  /// Says so, of them or of devices that no number is known of.
  [[nodiscard]] static std::string describe_late(const std::vector<int>& late, Duration waited);
  /// In a forked child: the driver does not work there, and there is no other thread.
  void abandon() noexcept FARANDOLE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  const std::string library_;
  std::shared_ptr<Waker> waker_;
  Mutex mutex_;
  std::shared_ptr<const DeviceDriver> driver_ FARANDOLE_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<EngineDevice>> open_ FARANDOLE_GUARDED_BY(mutex_);  // by index
};

}  // namespace farandole

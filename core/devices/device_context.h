/// One device of this machine, as seen by this process: the context that frameworks use too, points
/// in the order of its work, and copies.
///
/// Frameworks work in the primary context of a device, so their streams, events and addresses mean
/// the same here. Every call makes that context current on its thread and puts back what was
/// current before.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "devices/driver.h"
#include "mutex.h"
#include "result.h"
#include "types.h"

namespace farandole {

class DeviceContext;

/// A place in the order of a device's work: what was in a stream when it was made. Any thread.
class DevicePoint {
 public:
  DevicePoint(std::shared_ptr<DeviceContext> device, DriverEvent event) noexcept
      : device_(std::move(device)), event_(event) {}
  ~DevicePoint();
  DevicePoint(const DevicePoint&) = delete;
  DevicePoint& operator=(const DevicePoint&) = delete;

  /// Whether the work before it is done. Does not wait.
  [[nodiscard]] Result<bool> reached() const;
  /// What is put into that stream from now on comes after this point. Does not wait. `of`: its
  /// device, as each has a default stream.
  Result<void> precede(void* stream, const DeviceContext& of) const;
  /// Of a stream of the same device.
  Result<void> precede(void* stream) const { return precede(stream, *device_); }
  /// Waits until it is reached.
  Result<void> wait() const;
  [[nodiscard]] const std::shared_ptr<DeviceContext>& device() const noexcept { return device_; }

 private:
  std::shared_ptr<DeviceContext> device_;
  DriverEvent event_;
};

/// What no other device has.
using DeviceIdentity = std::array<char, 16>;

/// Whether a device reads the memory of another one without the host.
enum class Reach : std::uint8_t {
  Same,    ///< it is the same device
  Direct,  ///< it does
  None,    ///< it cannot
  Hidden,  ///< this process does not see the other device
};

/// Any thread.
class DeviceContext : public std::enable_shared_from_this<DeviceContext> {
 public:
  /// Fails if there is no such device, or it cannot be used.
  [[nodiscard]] static Result<std::shared_ptr<DeviceContext>> open(
      std::shared_ptr<const DeviceDriver> driver, int index);
  DeviceContext(std::shared_ptr<const DeviceDriver> driver, DriverDevice device,
                DriverContext context, int index) noexcept
      : driver_(std::move(driver)), device_(device), context_(context), index_(index) {}
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] const DeviceDriver& driver() const noexcept { return *driver_; }

  /// Current on this thread as long as this object lives.
  class Current {
   public:
    explicit Current(const DeviceContext& device) noexcept
        : driver_(*device.driver_), pushed_(driver_.context_push(device.context_) == 0) {
      // Else a graph that any thread captures meanwhile would be spoiled by a look at an event.
      driver_.exchange_capture_mode(&mode_);
    }
    ~Current() {
      driver_.exchange_capture_mode(&mode_);
      DriverContext before = nullptr;
      if (pushed_) driver_.context_pop(&before);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const DeviceDriver& driver_;
    bool pushed_;
    int mode_ = kCaptureRelaxed;
  };

  /// After everything that is in the stream now; null: the default stream.
  [[nodiscard]] Result<std::shared_ptr<DevicePoint>> point(void* stream);
  /// The stream is recorded for a graph: its work does not run now.
  [[nodiscard]] Result<bool> captures(void* stream) const;
  /// Whether commands of the stream are still to be done. A device that has failed does none.
  [[nodiscard]] bool busy(void* stream) const noexcept;
  /// Memory of any device; else of the host, or no address. Also if the device cannot say it.
  [[nodiscard]] bool holds(const void* address) const noexcept;
  /// In the order of the stream. Both ends stay valid until it is done.
  Result<void> copy(void* to, const void* from, std::size_t bytes, void* stream) const;
  /// Fills memory of the device with zeros, in the order of the stream.
  Result<void> clear(void* memory, std::size_t bytes, void* stream) const;
  [[nodiscard]] Result<DeviceIdentity> uuid() const;
  [[nodiscard]] Result<Reach> reach(const DeviceIdentity& other) const;
  /// The version of CUDA that the driver serves, 12040 for 12.4.
  [[nodiscard]] Result<int> driver_version() const;
  /// The status as an error that says what was tried.
  [[nodiscard]] Result<void> check(DriverStatus status, const char* what) const {
    if (status == kDriverSuccess) [[likely]] {
      return {};
    }
    return failure(status, what);
  }
  [[nodiscard]] Error failure(DriverStatus status, const std::string& what) const;

 private:
  friend class DevicePoint;
  void give_back(DriverEvent event) noexcept;

  std::shared_ptr<const DeviceDriver> driver_;
  DriverDevice device_;
  DriverContext context_;
  int index_;
  Mutex mutex_;
  std::vector<DriverEvent> events_ FARANDOLE_GUARDED_BY(mutex_);  // free ones
};

/// A stream of ours, which no other stream waits for. Ends by itself when its work is done.
class DeviceStream {
 public:
  [[nodiscard]] static Result<std::unique_ptr<DeviceStream>> open(
      std::shared_ptr<DeviceContext> device);
  DeviceStream(std::shared_ptr<DeviceContext> device, DriverStream stream) noexcept
      : device_(std::move(device)), stream_(stream) {}
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  [[nodiscard]] void* get() const noexcept { return stream_; }

 private:
  std::shared_ptr<DeviceContext> device_;
  DriverStream stream_;
};

/// What a device may still use when its owner must end: it stays for ever, and nobody waits for it.
///
/// Keeps it until the process ends. Any thread.
void leave_behind(std::shared_ptr<void> what);

/// Asks until the answer is yes, or the time is over: then false.
template <typename Question>
[[nodiscard]] bool comes_true(TimePoint deadline, const Question& question) {
  constexpr auto kLongest = std::chrono::milliseconds(5);
  Duration pause = std::chrono::microseconds(50);
  while (!question()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(2 * pause, kLongest);
  }
  return true;
}

/// Waits until the device has come to all of these points, or the time is over: then false. A point
/// that the device has failed at is over.
[[nodiscard]] inline bool all_reached(std::span<const std::shared_ptr<const DevicePoint>> points,
                                      TimePoint deadline) {
  return std::ranges::all_of(points, [&](const auto& point) {
    return comes_true(deadline, [&] {
      const auto reached = point->reached();
      return !reached || *reached;
    });
  });
}

/// The same for all that is in a stream of ours, also where no point could be made.
[[nodiscard]] inline bool done(const DeviceContext& device, void* stream, TimePoint deadline) {
  return comes_true(deadline, [&] { return !device.busy(stream); });
}

}  // namespace farandole

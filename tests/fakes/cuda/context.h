/// Devices, and the one context that each has.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cuda/status.h"
#include "cuda/stream.h"

namespace farandole::fakes {

class Context {
 public:
  /// `device`: as the process counts them; `number`: as the machine does.
  Context(int device, int number) : device_(device), number_(number) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void retain();
  /// False: nobody held it. With the last one all that belongs to it ends.
  [[nodiscard]] bool release();
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_relaxed); }

  /// The error that every call answers, 0: none.
  [[nodiscard]] DriverStatus broken() const noexcept {
    return broken_.load(std::memory_order_relaxed);
  }
  void break_with(DriverStatus status) noexcept {
    broken_.store(status, std::memory_order_relaxed);
  }

  [[nodiscard]] Stream* make_stream(bool blocking);
  [[nodiscard]] Stream& null_stream() const noexcept {
    return *null_stream_.load(std::memory_order_acquire);
  }
  /// Pushes as Stream::push, with the order that the null stream asks for.
  void enqueue(Stream& stream, std::function<void()> work, Ticket then = {});
  /// As enqueue of nothing; done when the stream has come there.
  [[nodiscard]] Ticket mark(Stream& stream);
  /// Waits for all streams.
  void synchronize();

  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  [[nodiscard]] std::vector<Stream*> streams(bool blocking_only) const;

  const int device_;
  const int number_;
  std::mutex retaining_;
  int retained_ = 0;  ///< guarded by retaining_
  std::atomic<bool> active_{false};
  std::atomic<DriverStatus> broken_{0};
  std::atomic<Stream*> null_stream_{nullptr};
  std::atomic<std::uint32_t*> null_place_{nullptr};  ///< after the last command of the null stream
  mutable std::shared_mutex listing_;
  std::vector<Stream*> streams_;  ///< those alive, without the null stream; guarded by listing_
};

/// What the environment says about the devices of this process.
class Devices {
 public:
  [[nodiscard]] static Devices& get();
  [[nodiscard]] std::size_t size() const noexcept { return contexts_.size(); }
  /// nullptr: no such device.
  [[nodiscard]] Context* context(int device) const noexcept;
  [[nodiscard]] Context* find(const DriverContextOpaque* handle) const noexcept;

 private:
  Devices();
  std::vector<Context*> contexts_;
};

/// The stack of contexts of this thread.
[[nodiscard]] std::vector<Context*>& context_stack();

}  // namespace farandole::fakes

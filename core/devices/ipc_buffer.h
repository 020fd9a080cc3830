/// Memory of a device that other processes of the host may read: CUDA's interprocess
/// communication.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "devices/devices.h"

namespace farandole {

/// That of this process. It is an allocation of the engine, because the tensors of a framework may
/// lie in memory that no handle can name. It goes back to the pool of its device, which may happen
/// when nobody has it open.
class IpcBuffer {
 public:
  /// One that was handed on, else a new one.
  [[nodiscard]] static Result<std::unique_ptr<IpcBuffer>> make(EngineDevice& device,
                                                               std::size_t bytes);
  /// For a buffer of which nobody can tell whether others still read it: it is not freed. What they
  /// read counts for nothing any more, so the next user may write to it. Any thread.
  static void hand_on(std::unique_ptr<IpcBuffer> buffer);
  IpcBuffer(HostBuffer memory, std::size_t bytes, int device,
            const DriverIpcHandle& handle) noexcept
      : memory_(std::move(memory)), bytes_(bytes), device_(device), handle_(handle) {}

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  /// What another process opens it by.
  [[nodiscard]] const DriverIpcHandle& handle() const noexcept { return handle_; }

 private:
  HostBuffer memory_;
  std::size_t bytes_;
  int device_;  // its index
  DriverIpcHandle handle_;
};

/// That of another process, as this one sees it. It is closed when no stream reads it any more.
class OpenedIpcBuffer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<OpenedIpcBuffer>> open(
      std::shared_ptr<DeviceContext> device, const DriverIpcHandle& handle);
  OpenedIpcBuffer(std::shared_ptr<DeviceContext> device, const std::byte* data) noexcept
      : device_(std::move(device)), data_(data) {}
  ~OpenedIpcBuffer();
  OpenedIpcBuffer(const OpenedIpcBuffer&) = delete;
  OpenedIpcBuffer& operator=(const OpenedIpcBuffer&) = delete;

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }

 private:
  std::shared_ptr<DeviceContext> device_;
  const std::byte* data_;
};

}  // namespace farandole

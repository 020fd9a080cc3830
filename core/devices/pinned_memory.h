/// Memory for pools: of a device, and of the host where a device copies from and to by itself.
#pragma once

#include <memory>

#include "devices/device_context.h"
#include "memory/host_pool.h"

namespace farandole {

/// Pinned. It is memory of the host for everybody else.
[[nodiscard]] std::unique_ptr<MemorySource> pinned_memory(std::shared_ptr<DeviceContext> device);
/// Of the device. The host cannot read it.
[[nodiscard]] std::unique_ptr<MemorySource> device_memory(std::shared_ptr<DeviceContext> device);

}  // namespace farandole

/// Host memory that a device copies from and to by itself, beside other work.
#pragma once

#include <memory>

#include "devices/device_context.h"
#include "memory/host_pool.h"

namespace rueda {

/// A source for pools. It is memory of the host for everybody else.
[[nodiscard]] std::unique_ptr<MemorySource> pinned_memory(std::shared_ptr<DeviceContext> device);

}  // namespace rueda

/// Copies of tensors that frameworks may change meanwhile.
#pragma once

#include "devices/devices.h"
#include "engine/execution/submission.h"
#include "memory/host_pool.h"
#include "result.h"

namespace farandole {

/// A copy in host memory that the tensor's device reaches, in the order of its stream; of a tensor
/// in host memory one from `pool`, at once. Fails if the device cannot be used, or there is no
/// memory. Any thread.
[[nodiscard]] Result<HostBuffer> host_copy(const Tensor& tensor, Devices& devices, HostPool& pool);

}  // namespace farandole

#include "engine/execution/host_copy.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace farandole {

Result<HostBuffer> host_copy(const Tensor& tensor, Devices& devices, HostPool& pool) {
  const std::size_t bytes =
      static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
  std::shared_ptr<EngineDevice> device;
  if (tensor.device != Device::Host) {
    auto opened = devices.at(tensor.device, tensor.device_index);
    if (!opened) return std::move(opened).error();
    device = std::move(*opened);
  }
  HostBuffer made = device != nullptr ? device->pinned().take(bytes) : pool.take(bytes);
  if (made.data() == nullptr) {
    return Error{.code = Code::Internal,
                 .message = "no memory for a copy of " + std::to_string(bytes) + " bytes"};
  }
  if (device == nullptr) {
    std::memcpy(made.data(), tensor.in, bytes);
  } else if (auto copied = device->context().copy(made.data(), tensor.in, bytes, tensor.stream);
             !copied) {
    return std::move(copied).error();
  }
  return made;
}

}  // namespace farandole

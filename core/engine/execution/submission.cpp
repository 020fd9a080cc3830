#include "engine/execution/submission.h"

#include <algorithm>

#include "collectives/registry.h"
#include "devices/devices.h"

namespace farandole {

namespace {

/// "Tensor 2 of 3 of grouped_allreduce.gradients"
std::string who(const Submission& submission, const Tensor& tensor, const std::string& name) {
  std::string who = "Tensor";
  if (submission.grouped) {
    who += " " + std::to_string(&tensor - submission.tensors.data() + 1) + " of " +
           std::to_string(submission.tensors.size());
  }
  return who + " of " + name;
}

/// One tensor in memory of a device. Those before it have been prepared.
Result<void> prepare(std::vector<Tensor>& tensors, Tensor& tensor, Devices& devices) {
  auto device = devices.at(tensor.device, tensor.device_index);
  if (!device) return std::move(device).error();
  tensor.on = std::move(*device);
  const auto same = std::ranges::find_if(tensors, [&](const Tensor& other) {
    return other.ready != nullptr && other.on == tensor.on && other.stream == tensor.stream;
  });
  if (same != tensors.end()) {
    tensor.ready = same->ready;
    return {};
  }
  DeviceContext& context = tensor.on->context();
  auto captures = context.captures(tensor.stream);
  if (!captures) return std::move(captures).error();
  if (*captures) {
    return Error{.code = Code::Unsupported,
                 .message =
                     "its stream is being captured into a graph, and an exchange between "
                     "ranks cannot be part of one. Call it outside of the capture"};
  }
  auto ready = context.point(tensor.stream);
  if (!ready) return std::move(ready).error();
  tensor.ready = std::move(*ready);
  return {};
}

}  // namespace

Result<void> prepare(Submission& submission, Devices& devices) {
  std::vector<Tensor>& tensors = submission.tensors;
  if (tensors.empty() && rules_of(submission.kind).without_tensors) {
    tensors.push_back({.dtype = DType::UInt8});  // what ranks negotiate has a signature
  }
  if (tensors.empty()) {
    return Error{.code = Code::InvalidArgument,
                 .message = "an operation needs at least one tensor"};
  }
  const bool in_place = rules_of(submission.kind).in_place;
  const auto wrong = std::ranges::find_if(tensors, [&](const Tensor& tensor) {
    return tensor.device != Device::Host ||
           (tensor.out == nullptr && in_place && element_count(tensor.shape) > 0);
  });
  if (wrong == tensors.end()) [[likely]] {
    return {};
  }
  std::string name = submission.grouped ? "grouped_" : "";
  name += rules_of(kind_of(submission)).prefix;
  if (!submission.name.empty()) name += "." + submission.name;
  for (auto tensor = wrong; tensor != tensors.end(); ++tensor) {
    if (tensor->out == nullptr && in_place && element_count(tensor->shape) > 0) {
      return Error{.code = Code::InvalidArgument,
                   .message = who(submission, *tensor, name) + " has no memory for its result",
                   .tensor = name};
    }
    if (tensor->device == Device::Host) continue;
    if (auto fine = prepare(tensors, *tensor, devices); !fine) {
      Error error = std::move(fine).error();
      error.message = who(submission, *tensor, name) + " is on device " +
                      std::string(name_of(tensor->device)) + " " +
                      std::to_string(tensor->device_index) + ": " + error.message;
      error.tensor = name;
      return error;
    }
  }
  return {};
}

}  // namespace farandole

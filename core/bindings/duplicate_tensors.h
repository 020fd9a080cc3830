/// Tensors of a group that share memory.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/registry.h"
#include "engine/engine.h"

namespace farandole::bindings {

/// What comes of results that overlap depends on which is written first, so they are refused. One
/// tensor may come twice, as tied weights do: it gets the result of its first place, and the later
/// ones are reduced in copies that nobody sees. They live until the operation is done.
inline Result<std::vector<HostBuffer>> separate_duplicates(Submission& submission, Engine& engine) {
  std::vector<HostBuffer> copies;
  std::vector<Tensor>& tensors = submission.tensors;
  const auto served = [&engine](const Tensor& tensor) { return engine.serves(tensor); };
  // What is elsewhere is refused by the engine.
  if (!rules_of(submission.kind).in_place || !std::ranges::all_of(tensors, served)) return copies;
  const auto bytes = [](const Tensor& tensor) {
    return static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
  };
  std::vector<std::size_t> order;
  order.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].out != nullptr && bytes(tensors[i]) > 0) order.push_back(i);
  }
  std::ranges::sort(order, [&tensors](std::size_t a, std::size_t b) {
    return std::pair(tensors[a].out, a) < std::pair(tensors[b].out, b);
  });
  std::size_t last = 0;
  for (std::size_t next = 1; next < order.size(); ++next) {
    const Tensor& before = tensors[order[last]];
    Tensor& tensor = tensors[order[next]];
    if (tensor.out >= before.out + bytes(before)) {
      last = next;
      continue;
    }
    if (tensor.out != before.out || tensor.in != before.in || tensor.dtype != before.dtype ||
        bytes(tensor) != bytes(before)) {
      const auto [low, high] = std::minmax(order[last], order[next]);
      return Error{.code = Code::InvalidArgument,
                   .message = "Tensors " + std::to_string(low) + " and " + std::to_string(high) +
                              " of the group overlap in memory, so their results would depend on "
                              "which is written first. Pass clones, or one tensor over both"};
    }
    auto copy = engine.copy(tensor);
    if (!copy) return Error::wrap(std::move(copy).error(), "a tensor comes twice in the group");
    tensor.in = tensor.out = copy->data();
    copies.push_back(std::move(*copy));
  }
  return copies;
}

}  // namespace farandole::bindings

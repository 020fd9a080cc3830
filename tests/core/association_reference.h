/// The association once more, on whole arrays and as plainly as possible.
#pragma once

#include <bit>
#include <vector>

#include "kernel_reference.h"

namespace rueda::reference {

inline Bytes associate(const std::vector<std::vector<int>>& groups,
                       const std::vector<Bytes>& inputs, const Reduction& reduction) {
  const auto combine = [&](const std::vector<Bytes>& sources) {
    return reduce(sources, reduction.dtype, reduction.op, 1.0);
  };
  std::vector<Bytes> hosts;
  for (const auto& group : groups) {
    std::vector<Bytes> sources;
    for (const int member : group) {
      sources.push_back(
          scale(inputs[static_cast<std::size_t>(member)], reduction.dtype, reduction.prescale));
    }
    hosts.push_back(combine(sources));
  }
  const std::size_t power = std::bit_floor(hosts.size());
  for (std::size_t i = power; i < hosts.size(); ++i) {
    hosts[i - power] = combine({hosts[i - power], hosts[i]});
  }
  for (std::size_t distance = 1; distance < power; distance *= 2) {
    for (std::size_t i = 0; i < power; i += 2 * distance) {
      hosts[i] = combine({hosts[i], hosts[i + distance]});
    }
  }
  return scale(hosts[0], reduction.dtype, reduction.postscale);
}

}  // namespace rueda::reference

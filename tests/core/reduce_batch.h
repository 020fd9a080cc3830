/// A fused allreduce on one member, by an algorithm of the test's choice.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "association_reference.h"
#include "backends/buffers/staging.h"
#include "tcp_world.h"

namespace farandole::testing {

/// One fused batch: the same counts on every member, in place or not.
struct Batch {
  std::vector<std::size_t> counts;
  bool in_place = false;
  [[nodiscard]] std::size_t count() const {
    std::size_t total = 0;
    for (const std::size_t count : counts) total += count;
    return total;
  }
};

using StartReduction =
    std::function<std::unique_ptr<Operation>(std::span<const Piece> pieces, Staging& staging)>;

/// Reduces that batch on one member; returns its concatenated output.
inline reference::Bytes reduce_batch(TcpBackend& backend, const reference::Bytes& input,
                                     const Batch& batch, const Reduction& reduction,
                                     const StartReduction& start) {
  using reference::Bytes;
  const std::size_t element = size_of(reduction.dtype);
  std::vector<Bytes> ins;
  std::vector<Bytes> outs;
  auto at = input.begin();
  for (const std::size_t count : batch.counts) {
    const auto end = at + static_cast<std::ptrdiff_t>(count * element);
    ins.emplace_back(at, end);
    outs.emplace_back(count * element, std::byte{0xee});
    at = end;
  }
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < ins.size(); ++i) {
    std::byte* const out = batch.in_place ? ins[i].data() : outs[i].data();
    pieces.push_back({ins[i].data(), out, batch.counts[i]});
  }
  {
    Staging staging;
    auto operation = start(pieces, staging);
    EXPECT_TRUE(succeeded(drive(*operation, backend)));
  }
  Bytes result;
  for (const Bytes& part : batch.in_place ? ins : outs) {
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

}  // namespace farandole::testing

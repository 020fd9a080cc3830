/// Shows on the timeline when an operation gets memory for its result.
#pragma once

#include "collectives/task.h"
#include "engine/timeline/timeline.h"

namespace farandole {

class TracedAllocator final : public OutputAllocator {
 public:
  TracedAllocator(OutputAllocator& inner, Timeline& timeline, Track track) noexcept
      : inner_(inner), timeline_(timeline), track_(track) {}

  Result<std::byte*> allocate(const Shape& shape, DType dtype) override {
    const auto begin = Clock::now();
    auto memory = inner_.allocate(shape, dtype);
    timeline_.allocated(track_, begin, Clock::now());
    return memory;
  }

 private:
  OutputAllocator& inner_;
  Timeline& timeline_;
  Track track_;
};

}  // namespace farandole

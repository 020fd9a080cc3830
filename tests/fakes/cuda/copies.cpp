#include "cuda/copies.h"

#include <array>
#include <cstring>
#include <memory>
#include <utility>

namespace farandole::fakes {
namespace {

/// A range that nothing lives in is an error of the program that the device would meet sooner or
/// later: the context is of no use any more.
DriverStatus refuse(Context& context) {
  context.break_with(kDriverInvalidValue);
  return kDriverInvalidValue;
}

bool usable(Context& context, const Place& place) {
  if (place.valid()) return true;
  context.break_with(kIllegalAddress);
  return false;
}

}  // namespace

CopyCounts& copy_counts(bool from_device, bool to_device) {
  static std::array<CopyCounts, 4> counts;
  return counts[(from_device ? 2U : 0U) + (to_device ? 1U : 0U)];
}

std::atomic<std::size_t>& pageable_copies() {
  static std::atomic<std::size_t> copies{0};
  return copies;
}

DriverStatus copy(DriverAddress to_address, DriverAddress from_address, std::size_t bytes,
                  Stream& stream) {
  if (bytes == 0) return kDriverSuccess;
  Context& context = stream.context();
  const Place to = Memory::get().find(to_address, bytes);
  const Place from = Memory::get().find(from_address, bytes);
  if (to.kind == Place::Kind::Bad || from.kind == Place::Kind::Bad) return refuse(context);

  CopyCounts& counts =
      copy_counts(from.kind == Place::Kind::Device, to.kind == Place::Kind::Device);
  counts.number.fetch_add(1, std::memory_order_relaxed);
  counts.bytes.fetch_add(bytes, std::memory_order_relaxed);
  const bool from_pageable = from.kind == Place::Kind::Pageable;
  const bool to_pageable = to.kind == Place::Kind::Pageable;
  if (from_pageable || to_pageable) pageable_copies().fetch_add(1, std::memory_order_relaxed);

  if (from_pageable && to.kind == Place::Kind::Device) {
    auto staged = std::make_shared<std::vector<std::byte>>(from.content, from.content + bytes);
    context.enqueue(stream, [&context, to, staged = std::move(staged)] {
      if (context.broken() != kDriverSuccess || !usable(context, to)) return;
      std::memcpy(to.content, staged->data(), staged->size());
    });
    return kDriverSuccess;
  }
  context.enqueue(stream, [&context, to, from, bytes] {
    if (context.broken() != kDriverSuccess || !usable(context, to) || !usable(context, from))
      return;
    std::memcpy(to.content, from.content, bytes);
  });
  if (!from_pageable && !to_pageable) return kDriverSuccess;
  context.mark(stream).wait();
  return context.broken();
}

DriverStatus launch(Stream& stream, DriverAddress address, std::size_t bytes,
                    std::function<void(std::byte*)> kernel) {
  if (bytes == 0) return kDriverSuccess;
  Context& context = stream.context();
  const Place place = Memory::get().find(address, bytes);
  if (place.kind == Place::Kind::Bad || place.kind == Place::Kind::Pageable) return refuse(context);
  context.enqueue(stream, [&context, place, kernel = std::move(kernel)] {
    if (context.broken() != kDriverSuccess || !usable(context, place)) return;
    kernel(place.content);
  });
  return kDriverSuccess;
}

}  // namespace farandole::fakes

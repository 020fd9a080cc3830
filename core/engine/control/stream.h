/// Applies the dispatch stream: the decisions of the coordinator, in one order for all ranks.
#pragma once

#include <cstdint>
#include <span>

#include "engine/control/collector.h"
#include "engine/control/negotiator.h"
#include "engine/control/participant.h"
#include "engine/control/response_cache.h"
#include "engine/control/world.h"

namespace farandole {

/// The coordinator applies its own stream by the same code, so cache ids mean the same on every
/// rank.
class Stream {
 public:
  Stream(World& world, ResponseCache& cache, Participant& participant)
      : world_(world), cache_(cache), participant_(participant) {}
  void attach(Collector& collector) noexcept { collector_ = &collector; }

  /// A whole message from the parent.
  Result<void> receive(std::span<const std::byte> message, TimePoint now, Effects& effects);
  /// Counts the next message.
  void advance() noexcept { ++position_; }
  /// Applies one record; `reader` stands behind its head.
  Result<void> apply(wire::Reader& reader, wire::Entry& entry, TimePoint now, Effects& effects);

  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  [[nodiscard]] bool closed() const noexcept { return closed_; }

 private:
  Result<void> apply_dispatch(wire::Reader& reader, wire::Entry& entry, TimePoint now,
                              Effects& effects);
  Result<void> apply_failure(const wire::Entry& entry, Effects& effects);
  /// Adds or removes a process set: every rank does so at this position of the stream.
  Result<void> change_sets(const Signature& signature, Dispatch& dispatch, TimePoint now,
                           Effects& effects);
  void count(const KeyState* key_state, const wire::KeyRef& key);
  [[nodiscard]] Error malformed_from_parent(std::string_view what) const;

  World& world_;
  ResponseCache& cache_;
  Participant& participant_;
  Collector* collector_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t dispatches_ = 0;
  bool closed_ = false;
};

}  // namespace farandole

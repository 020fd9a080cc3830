/// Follows the dispatch stream: what the caller decided, in one order for all ranks.
#pragma once

#include <cstdint>
#include <span>

#include "engine/control/collector.h"
#include "engine/control/glossary.h"
#include "engine/control/member.h"
#include "engine/control/negotiator.h"
#include "engine/control/world.h"

namespace rueda {

/// The caller follows its own stream by the same code: so numbers mean the same everywhere.
class Stream {
 public:
  Stream(World& world, Glossary& glossary, Member& member)
      : world_(world), glossary_(glossary), member_(member) {}
  void attach(Collector& collector) noexcept { collector_ = &collector; }

  /// A whole message from above.
  Result<void> receive(std::span<const std::byte> message, TimePoint now, Effects& effects);
  /// The next message begins.
  void advance() noexcept { ++position_; }
  /// The record at the front of `reader`.
  Result<void> apply(wire::Reader& reader, wire::Entry& entry, TimePoint now, Effects& effects);

  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  [[nodiscard]] bool closed() const noexcept { return closed_; }

 private:
  Result<void> apply_dispatch(wire::Reader& reader, wire::Entry& entry, TimePoint now,
                              Effects& effects);
  Result<void> apply_failure(const wire::Entry& entry, Effects& effects);
  /// A set appears or goes, at this position of the stream on every rank.
  Result<void> change_sets(const Signature& signature, Dispatch& dispatch, TimePoint now,
                           Effects& effects);
  void count(const Term* term, const wire::KeyRef& key);
  [[nodiscard]] Error nonsense_from_above(std::string_view what) const;

  World& world_;
  Glossary& glossary_;
  Member& member_;
  Collector* collector_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t dispatches_ = 0;
  bool closed_ = false;
};

}  // namespace rueda

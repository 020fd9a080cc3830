/// Counts reports on their way up the control tree. A rank without children only passes its own on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/control/collector.h"
#include "engine/control/negotiator.h"

namespace rueda {

/// Equal reports of a whole subtree go up as one. As soon as two differ, one below has joined, or
/// they have waited for the rest too long (the caller has to know who is missing), they go up
/// rank by rank, so that the caller hears who said what.
class Node final : public Collector {
 public:
  Node(const World& world, Glossary& glossary, Duration stall_warning);

  Result<void> report(const Report& report, TimePoint now) override;
  Result<void> join(Rank rank, TimePoint now) override;
  void leave(const wire::Departure& who) override { up().leave(who); }
  void blocked(Rank rank, std::uint64_t position, std::string_view name, TimePoint now) override;
  void unblocked(Rank rank, TimePoint) override { up().unblocked(rank); }
  void settle(Term& term) override;
  void all_joined() override { joined_.clear(); }
  void set_removed(const ProcessSet&, std::span<Term* const>, TimePoint) override {}

  void tick(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_tick() const;
  /// Sends what has gathered to the parent.
  void flush(std::uint64_t position, Effects& effects);

 protected:
  void all_acknowledged() override { up().acknowledge(); }

 private:
  [[nodiscard]] wire::Writer up() { return wire::Writer(message_); }
  void pass_on(Term& term, const MeaningPtr& meaning, std::string_view group,
               std::uint8_t size_class, bool whole);
  void pass_on_apart(Term& term, const MeaningPtr& meaning, std::string_view group,
                     std::uint8_t size_class, const RankSet& who, Duration age);
  void take_apart(Term& term, TimePoint now);

  const Duration patience_;  // how long to wait for the rest of the subtree; zero: for ever
  const bool leaf_;
  RankSet joined_;
  OpenTerms open_;  // tallies that wait for the rest
  std::vector<std::byte> message_;
  Rank origin_ = -1;  // what the records in message_ were said to be from
  std::uint32_t age_ms_ = 0;
  std::uint64_t forgotten_ = 0;  // at the last message
};

}  // namespace rueda

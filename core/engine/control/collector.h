/// Receives the reports of this rank and of the ranks below it in the control tree.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/control/response_cache.h"
#include "engine/control/world.h"
#include "result.h"

namespace farandole {

/// Some ranks are ready for an operation. Views are valid during the call.
struct Report {
  KeyState& key_state;
  const ProcessSet& set;
  const CanonicalSignaturePtr& canonical;
  std::string_view group;
  std::uint8_t size_class = 0;
  const RankSet& who;
  TimePoint since;
  bool aged = false;  ///< a tree node held it for long: it is forwarded at once
};

/// Base of the tree node, which forwards reports, and of the coordinator, which decides.
class Collector {
 public:
  Collector(const World& world, ResponseCache& cache);
  virtual ~Collector() = default;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  virtual Result<void> report(const Report& report, TimePoint now) = 0;
  virtual Result<void> join(Rank rank, TimePoint now) = 0;
  virtual void leave(const wire::Departure& who) = 0;
  /// `certain`: no thread of that rank could submit anything; else another one may.
  virtual void blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name,
                       TimePoint now) = 0;
  virtual void unblocked(Rank rank, TimePoint now) = 0;

  // Entries of the dispatch stream that concern reports.
  virtual void settle(KeyState& key_state) = 0;  ///< it was dispatched or has failed: the next
                                                 ///< report starts another use
  virtual void all_joined() = 0;
  /// Forgets everything about the set. `key_states`: those of its keys; settle() is called for each
  /// of them next.
  virtual void set_removed(const ProcessSet& set, std::span<KeyState* const> key_states,
                           TimePoint now) = 0;
  void stop() noexcept { stopped_ = true; }

  /// A message from a child in the control tree. `position`: this rank's position in the stream.
  Result<void> receive(std::size_t child, std::span<const std::byte> message,
                       std::uint64_t position, TimePoint now);
  /// This rank has finished everything that was dispatched before the shutdown.
  void acknowledge();
  /// The position in the stream that all ranks of the subtree have reached; `own` is this rank's.
  [[nodiscard]] std::uint64_t seen(std::uint64_t own) const noexcept;

 protected:
  virtual void all_acknowledged() = 0;
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

  const World& world_;
  ResponseCache& cache_;

 private:
  Result<void> receive_ready(std::size_t child, const wire::Entry& entry, Rank origin, Duration age,
                             TimePoint now);
  Result<void> acknowledge_child(std::size_t child);

  std::vector<std::uint64_t> seen_;  // by child
  std::vector<bool> acknowledged_;   // by child
  std::size_t awaited_;              // acknowledgements that are missing, this rank's included
  bool own_acknowledged_ = false;
  bool stopped_ = false;  // the shutdown entry was applied: later reports are dropped
};

/// The error for a malformed message of a peer.
[[nodiscard]] Error malformed(const World& world, Rank from, std::string_view what);

}  // namespace farandole

/// Finds the first cause when ranks are lost, so that all ranks name the same one.
///
/// Several ranks see the same loss in different ways: the kernel tells the ranks of the host that a
/// process has ended, others see a connection end, or the connection of somebody who gave up
/// because of it. So a rank that has seen something says it up the control tree and waits a moment
/// for the verdict of the root, which takes the best evidence, at equal evidence the first. Whoever
/// hears no verdict in time, or has lost its way to the root, judges by itself.
///
/// A pure state machine: evidence and time come in by calls.
#pragma once

#include <optional>

#include "result.h"

namespace rueda {

/// How much is known about a loss. The numbers travel in cause frames.
enum class Evidence : std::uint8_t {
  Data = 0,     ///< a data connection ended: perhaps only because its owner gave up
  Control = 1,  ///< a control connection ended without a word, or speaks nonsense
  Certain = 2,  ///< the process has ended or was silent for too long; or this is no loss of a rank
};

class Inquest {
 public:
  struct Finding {
    Error error;
    Evidence evidence = Evidence::Data;
  };

  [[nodiscard]] bool open() const noexcept { return best_.has_value(); }
  [[nodiscard]] const Finding& best() const noexcept { return *best_; }

  /// Something was seen here or reported from below. True: it is better than all before, and should
  /// go up. `way_up`: somebody above may know better and will say so.
  bool hear(Error error, Evidence evidence, bool way_up, TimePoint now);
  /// Nobody above can be asked any more.
  void lose_way_up() noexcept { way_up_ = false; }
  /// When what is known has to do. Only while open().
  [[nodiscard]] TimePoint deadline() const noexcept;
  void close() noexcept { best_.reset(); }

 private:
  std::optional<Finding> best_;
  TimePoint since_{};
  bool way_up_ = false;
};

}  // namespace rueda

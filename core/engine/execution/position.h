/// Where a rank stands in the operations of the world: what ranks tell each other when nothing
/// moves.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "transport/operation_tag.h"
#include "types.h"

namespace farandole {

/// An operation, by a name that is the same on all its members.
struct Position {
  enum class Stream : std::uint8_t { None = 0, Dispatches = 1, Proposals = 2 };
  Stream stream = Stream::None;
  /// Grows from one dispatch to the next, and from one operation that a process set has agreed on
  /// by itself to the next (proposed_number() in transport/operation_tag.h).
  std::uint64_t number = 0;
  /// Numbers of one order grow from operation to operation.
  [[nodiscard]] std::pair<Stream, std::uint64_t> order() const noexcept {
    return {stream, stream == Stream::Proposals ? number >> kProposedSetShift : 0};
  }
  bool operator==(const Position&) const = default;
};

/// How far a rank has come.
struct Standing {
  enum class State : std::uint8_t { Before = 0, In = 1, Past = 2 };
  State state = State::Before;
  Duration quiet{};             ///< how long ago its last progress was, in whatever it was at
  std::vector<Rank> waits_for;  ///< in what it is at now; none: it is at nothing
};

}  // namespace farandole

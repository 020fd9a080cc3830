/// Finds operations that have one name and differ in kind or group size: an allreduce on one rank
/// and an allgather on another, or groups of three and of four tensors. Their keys differ, so none
/// of them ever becomes complete.
#pragma once

#include <functional>
#include <vector>

#include "engine/control/key_state.h"
#include "engine/control/world.h"

namespace farandole {

/// Operations that fail together, and the error.
struct Conflict {
  std::vector<KeyState*> key_states;
  Error error;
};

/// A correct script can look the same for a while: two operations of one name are in flight, and
/// ranks submit them in different orders. So it is a conflict only if every member of the set has
/// reported exactly one of the operations of that name, or has joined, and every member waits.
///
/// A sparse tensor of that name travels as allgathers of its values and its indices, whose names
/// end with that: a rank that brings a dense tensor under the name differs from one that brings
/// these. Hardly a legal script does both to one name in another order on each rank, so nobody has
/// to be known to wait, only the operations have to be old. The same holds for names of gradients
/// that differ in which variables have none (`.lacks.1.3`). Everything else of the set that is as
/// old fails with them: gradients of one step, which travel in other groups there.
///
/// `open`: the oldest open tally; the others follow by `newer`. `waits`: ranks that are known to be
/// blocked. `joined`: ranks that have joined. `old`: what was reported until then is old.
[[nodiscard]] std::vector<Conflict> find_conflicts(
    KeyState* open, const std::function<const ProcessSet&(const KeyState&)>& set_of,
    const RankSet& waits, const RankSet& joined, TimePoint old);

}  // namespace farandole

/// Disagreement of ranks: about an operation that all of them have reported (a mismatch), or about
/// what a name stands for (a conflict).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "engine/base/rank_set.h"
#include "engine/control/key_state.h"
#include "engine/control/world.h"
#include "result.h"

namespace farandole {

/// The error that every rank gets which submitted the operation; none if it can run. `absent`:
/// members that have joined instead; only some operations of the world run without them. The text
/// does not depend on the order in which reports came. Moves the statement of the lowest rank to
/// the front.
[[nodiscard]] std::optional<Error> find_mismatch(KeyState& key_state, const RankSet& absent);

/// Operations that fail together, and the error. They have one name and differ in kind or group
/// size: an allreduce on one rank and an allgather on another, or groups of three and of four
/// tensors. Their keys differ, so none of them ever becomes complete.
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

/// Ranks that mean one operation and call it different things: an allreduce here and an allgather
/// there under one name, or groups of three and of four tensors. Their keys differ, so none of them
/// is ever complete.
#pragma once

#include <functional>
#include <vector>

#include "engine/control/term.h"
#include "engine/control/world.h"

namespace rueda {

/// Terms that fail together, and why.
struct Conflict {
  std::vector<Term*> terms;
  Error error;
};

/// What a script may do legally looks the same for a while: two operations of one name under way at
/// once, in another order on other ranks. So this is a conflict only if every member of the set has
/// said exactly one of the things that the name stands for, or has joined, and all of them wait.
///
/// `open`: all that is open, oldest first. `waits`: ranks that are known to wait for something that
/// has not come. `joined`: ranks that say nothing more.
[[nodiscard]] std::vector<Conflict> find_conflicts(
    Term* open, const std::function<const ProcessSet&(const Term&)>& set_of, const RankSet& waits,
    const RankSet& joined);

}  // namespace rueda

/// Checks whether ranks agree about an operation that all of them have reported.
#pragma once

#include <optional>

#include "engine/base/rank_set.h"
#include "engine/control/key_state.h"
#include "result.h"

namespace farandole {

/// The error that every rank gets which submitted the operation; none if it can run. `absent`:
/// members that have joined instead; only some operations of the world run without them. The text
/// does not depend on the order in which reports came. Moves the statement of the lowest rank to
/// the front.
[[nodiscard]] std::optional<Error> find_mismatch(KeyState& key_state, const RankSet& absent);

}  // namespace farandole

/// Whether ranks agree about an operation that all of them have reported.
#pragma once

#include <optional>

#include "engine/base/rank_set.h"
#include "engine/control/term.h"
#include "result.h"

namespace rueda {

/// The error that every rank gets which submitted it; none if it can run. `absent`: members that
/// have joined instead of submitting: only operations of the world can do without them. The same
/// reports give the same text in whatever order they came. Brings the statement of the lowest rank
/// to the front.
[[nodiscard]] std::optional<Error> verdict(Term& term, const RankSet& absent);

}  // namespace rueda

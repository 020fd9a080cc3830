/// Advice after mistakes that scripts often make: sentences that more than one error ends
/// with.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/rank_set.h"

namespace farandole {

/// Ranks with different numbers of batches.
inline constexpr std::string_view kUnequalBatches =
    "give all ranks the same number of batches, or let each call hvd.join() after its last one";

/// Only `some` ranks call an operation, the `others` do not.
[[nodiscard]] std::string all_must_call(const RankSet& some, const RankSet& others);

/// Ends `message` with advice to look at the output of a rank, as a sentence of its own. What that
/// rank has said of its end may have a full stop, and such advice, already: neither comes twice.
void advise_to_look(std::string& message, std::string_view advice);

}  // namespace farandole

/// Why a rank refuses a submission of its own: sentences that more than one part has to say.
#pragma once

#include <cstdint>
#include <string>

#include "result.h"

namespace farandole {

/// `name`: the full name of an operation of this rank, which is in flight already.
[[nodiscard]] Error already_in_flight(Kind kind, std::string name);
/// `name`: the full name of an operation that comes after an own join.
[[nodiscard]] Error refused_after_join(std::string name);
/// `name`: the full name of the operation that asks for the set; may be empty.
[[nodiscard]] Error no_such_set(std::int32_t id, std::string name = {});
/// `name`: the full name of an operation that was in flight, or proposed, in that set.
[[nodiscard]] Error set_was_removed(std::int32_t id, std::string name);

}  // namespace farandole

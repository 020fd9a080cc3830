/// Which collectives exist: one line each in registry.cpp.
#pragma once

#include "collectives/signature.h"

namespace rueda {

struct Collective;

/// The record of a kind; null for kinds that this build lacks.
[[nodiscard]] const Collective* find_collective(Kind kind) noexcept;
/// What the negotiator needs to know about it. Valid for every kind (Join has no collective).
[[nodiscard]] const Rules& rules_of(Kind kind) noexcept;

}  // namespace rueda

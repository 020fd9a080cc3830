/// The list of the collectives. Each has a declaration and an entry.
#pragma once

#include <array>
#include <cstdint>

#include "collectives/signature.h"

namespace farandole {

struct Collective;

extern const Collective kAllreduce;
extern const Collective kAdasum;
extern const Collective kAllgather;
extern const Collective kBroadcast;
extern const Collective kAlltoall;
extern const Collective kReducescatter;
extern const Collective kReduce;
extern const Collective kBarrier;
extern const Collective kAddProcessSet;
extern const Collective kRemoveProcessSet;

// clang-format off
inline constexpr std::array kCollectives{
    &kAllreduce,
    &kAdasum,
    &kAllgather,
    &kBroadcast,
    &kAlltoall,
    &kReducescatter,
    &kReduce,
    &kBarrier,
    &kAddProcessSet,
    &kRemoveProcessSet,
};
// clang-format on

/// Kinds have the numbers 0 … kKinds - 1: those of all collectives, and Join, which is none.
inline constexpr std::uint8_t kKinds = kCollectives.size() + 1;

/// The record of a kind; null for kinds that this build lacks.
[[nodiscard]] const Collective* find_collective(Kind kind) noexcept;
/// What the negotiator needs to know about a kind. Valid for every kind, also Join, which has no
/// collective.
[[nodiscard]] const Rules& rules_of(Kind kind) noexcept;

}  // namespace farandole

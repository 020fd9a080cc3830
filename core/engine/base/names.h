/// Names of operations in messages and on the timeline.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/signature.h"

namespace farandole {

/// An unnamed call is identified by its number among the unnamed calls of its process set since the
/// last join: up to 2^40 calls and 2^24 joins.
inline constexpr int kUnnamedCallBits = 40;
[[nodiscard]] std::uint64_t unnamed_call_number(std::uint64_t joins, std::uint64_t call);
/// The number of the call since the last join, from 1.
[[nodiscard]] std::uint64_t unnamed_call_index(std::uint64_t number);
/// "noname.7"; "noname.2.7" after the second join.
[[nodiscard]] std::string unnamed_call(std::uint64_t number);
/// "allreduce.layer1.weight", "allreduce.noname.7"
[[nodiscard]] std::string full_name(const Key& key);
/// Nothing waits for operations of such names unless it says so, and it is no fault if not all
/// ranks submit them: comparisons of replicas.
[[nodiscard]] bool is_aside(const Key& key);

}  // namespace farandole

/// Wording that more than one part of the engine uses: names of operations in messages and on the
/// timeline, errors of refused submissions, and advice after mistakes that scripts often make.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/signature.h"
#include "engine/base/rank_set.h"
#include "result.h"

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

/// `name`: the full name of an operation of this rank, which is in flight already.
[[nodiscard]] Error already_in_flight(Kind kind, std::string name);
/// `name`: the full name of an operation that comes after an own join.
[[nodiscard]] Error refused_after_join(std::string name);
/// `name`: the full name of the operation that asks for the set; may be empty.
[[nodiscard]] Error no_such_set(std::int32_t id, std::string name = {});
/// `name`: the full name of an operation that was in flight, or proposed, in that set.
[[nodiscard]] Error set_was_removed(std::int32_t id, std::string name);

/// Ranks with different numbers of batches.
inline constexpr std::string_view kUnequalBatches =
    "give all ranks the same number of batches, or let each call hvd.join() after its last one";

/// Only `some` ranks call an operation, the `others` do not.
[[nodiscard]] std::string all_must_call(const RankSet& some, const RankSet& others);

/// Ends `message` with advice to look at the output of a rank, as a sentence of its own. What that
/// rank has said of its end may have a full stop, and such advice, already: neither comes twice.
void advise_to_look(std::string& message, std::string_view advice);

}  // namespace farandole

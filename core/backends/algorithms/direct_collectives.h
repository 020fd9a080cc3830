/// The collectives that only move bytes, built on send() and recv() only.
#pragma once

#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/buffers/staging.h"

namespace farandole {

/// Every member sends its contribution to every other member. `backend` and `staging` outlive the
/// operation.
[[nodiscard]] std::unique_ptr<Operation> direct_allgather(Backend& backend, Staging& staging,
                                                          GatherPlan plan);

/// Every member sends every other member its part.
[[nodiscard]] std::unique_ptr<Operation> direct_alltoall(Backend& backend, AlltoallPlan plan);

/// True if a broadcast goes along a chain of members and not down a tree: then no member sends
/// twice.
[[nodiscard]] bool chain_broadcast(std::size_t bytes, int members) noexcept;

/// Down a binomial tree or, if long, a chain, in chunks that are passed on as they arrive.
[[nodiscard]] std::unique_ptr<Operation> tree_broadcast(Backend& backend,
                                                        std::span<const std::byte> in,
                                                        std::span<std::byte> out, int root);

/// Dissemination barrier: in round k, receive from the member 2^k before and send to the one 2^k
/// after.
[[nodiscard]] std::unique_ptr<Operation> dissemination_barrier(Backend& backend);

}  // namespace farandole

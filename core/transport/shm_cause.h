/// Why a rank gave up, left in its own segment for the other ranks of the host.
///
/// A rank that fails closes its connections, and whoever sees that fails as well. So that all of
/// them name the first cause and not the first victim, the cause is written down before closing.
#pragma once

#include <optional>

#include "result.h"
#include "transport/shm_layout.h"

namespace rueda {

/// Fills the record of the own segment. Only the first call counts. Any thread.
/// Long texts are cut; causes beneath the error become part of the text.
void publish_cause(const ShmView& own, const Error& error) noexcept;

/// What the owner of that segment left, if it did.
[[nodiscard]] std::optional<Error> read_cause(const ShmView& peer);

}  // namespace rueda

/// The cause of a rank's failure, left in its segment for the other ranks of the host.
///
/// A rank that fails closes its connections, and its peers then fail as well. The cause is written
/// to the segment first, so that all of them report the first cause and not the first victim.
#pragma once

#include <optional>

#include "result.h"
#include "transport/shm_layout.h"

namespace farandole {

/// Fills the record of this rank's segment. Only the first call has an effect. Any thread. Long
/// texts are cut. Causes beneath the error become part of the text.
void publish_cause(const ShmView& own, const Error& error) noexcept;

/// The cause that the owner of that segment has left; none: it has not failed.
[[nodiscard]] std::optional<Error> read_cause(const ShmView& peer);

}  // namespace farandole

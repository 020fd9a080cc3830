/// What parts of the engine say when they see that something has broken, and the words for it.
#pragma once

#include <string_view>

#include "engine/control/peers.h"
#include "engine/failure/inquest.h"
#include "result.h"

namespace rueda {

/// Where it is said: at the failure detector. Holder of the baton only.
class Losses {
 public:
  virtual ~Losses() = default;
  /// A peer seems lost.
  virtual void lose(Rank rank, Error error, Evidence evidence, TimePoint now) = 0;
  /// The world cannot go on.
  virtual void accuse(Error error, Evidence evidence, TimePoint now) = 0;
};

/// "rank 1 on host a is `how`"
[[nodiscard]] Error lost_error(const Peers& peers, Rank rank, std::string_view how);
/// What failed on one rank alone is told to all of them: where it was, and in which operation.
void tell_whose(Error& error, Rank rank, const Peers& peers);

/// To all neighbours in the control tree but one, which has no circles. A loss is told.
void pass_on(std::span<const std::byte> frame, Rank but, Peers& peers, Losses& losses,
             TimePoint now);

}  // namespace rueda

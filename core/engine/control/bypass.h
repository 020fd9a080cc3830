/// The way around the negotiator, as those see it who do not take it.
#pragma once

#include "collectives/signature.h"

namespace rueda {

/// All with the lock of the engine held; see Negotiation.
class Bypass {
 public:
  virtual ~Bypass() = default;
  /// This rank goes the regular way, or has nothing more to say: it will not offer for some time.
  virtual void close() = 0;
  /// This rank has nothing in flight on the regular way.
  virtual void reopen() = 0;
  /// That key is in flight, though the negotiator has not heard of it.
  [[nodiscard]] virtual bool offers(const Key& key) const = 0;
};

}  // namespace rueda

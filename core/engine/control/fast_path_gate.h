/// What the regular path tells the fast path: when this rank may propose operations there, and when
/// it must not.
#pragma once

#include "collectives/signature.h"
#include "engine/base/engine_lock.h"

namespace farandole {

class FastPathGate {
 public:
  virtual ~FastPathGate() = default;
  /// This rank has submitted something on the regular path, or has ended. It makes no proposals
  /// until reopen().
  virtual void close() FARANDOLE_REQUIRES(engine_lock) = 0;
  /// This rank has nothing in flight on the regular path.
  virtual void reopen() FARANDOLE_REQUIRES(engine_lock) = 0;
  /// A proposal of this rank has no outcome yet: it comes before all that is submitted now.
  [[nodiscard]] virtual bool open() const noexcept FARANDOLE_REQUIRES(engine_lock) = 0;
  /// True if that key is in flight on the fast path. The negotiator does not know about it.
  [[nodiscard]] virtual bool has_proposed(const Key& key) const FARANDOLE_REQUIRES(engine_lock) = 0;
};

}  // namespace farandole

#include <array>

#include "target.h"

namespace rueda::fuzz {

std::span<const Target> targets() {
  static const std::array all{kWire,     kNegotiator,   kCauseFrame,       kSocketChannel,
                              kPeerLink, kSharedMemory, kSharedOperations, kOffers};
  return all;
}

}  // namespace rueda::fuzz

#include <array>

#include "target.h"

namespace farandole::fuzz {

std::span<const Target> targets() {
  static const std::array all{kWire,     kNegotiator,   kCauseFrame,       kSocketChannel,
                              kPeerLink, kSharedMemory, kSharedOperations, kProposals};
  return all;
}

}  // namespace farandole::fuzz

/// Tags that say which operation data belong to. Every sender adds the tag and every reader checks
/// it, so a mistake in the order of operations becomes an error, never a wrong result.
#pragma once

#include <cstdint>
#include <string>

#include "result.h"

namespace farandole {

/// Equal on all members of an operation, and different for every operation. 0: no particular
/// operation.
using OperationTag = std::uint64_t;

/// The sequences in which operations are numbered.
inline constexpr unsigned kTagShift = 62;

/// The number of what was proposed: 0 for the world, else a number of the process set, from its
/// generation; round; part, from 1. Numbers of sets begin again after 16383 additions.
inline constexpr unsigned kProposedSetShift = 48;
inline constexpr unsigned kProposedRoundShift = 16;
[[nodiscard]] constexpr std::uint64_t proposed_number(std::uint32_t generation, std::uint32_t round,
                                                      std::uint64_t part) noexcept {
  constexpr std::uint32_t kSets = 0x3FFF;
  const std::uint64_t set = generation == 0 ? 0 : (generation - 1) % kSets + 1;
  return set << kProposedSetShift | static_cast<std::uint64_t>(round) << kProposedRoundShift | part;
}

[[nodiscard]] inline std::string describe(OperationTag tag) {
  const std::uint64_t number = tag << 2 >> 2;
  switch (tag >> kTagShift) {
    case 1:
      return "dispatch " + std::to_string(number);
    case 2: {
      const std::uint64_t set = number >> kProposedSetShift;
      return "part " + std::to_string(number & 0xFFFF) + " of what was agreed in round " +
             std::to_string(number >> kProposedRoundShift & 0xFFFFFFFF) +
             (set == 0 ? ""
                       : " of the process set that was added as number " + std::to_string(set));
    }
    default:
      return "operation " + std::to_string(number);
  }
}

/// The error for data of one operation where those of another one were expected.
[[nodiscard]] inline Error mixed_up(Rank peer, OperationTag theirs, OperationTag own) {
  return Error{.message = "brings data of " + describe(theirs) + ", while this rank runs " +
                          describe(own) +
                          ": ranks have come to different orders of operations. Nothing of it was "
                          "used; this is a fault of the engine, please report it",
               .peer = peer,
               .by_peer = true};
}

}  // namespace farandole

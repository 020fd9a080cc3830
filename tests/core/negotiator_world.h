/// What tests of single situations share: a world of negotiators, and a look at one submission.
#pragma once

#include "simulator.h"

namespace farandole::test {

inline const Signature kFloats = signature(Kind::Allreduce, {256});

inline Simulator world(int size, int per_group, NegotiatorOptions options = {}) {
  return Simulator(make_groups(size, per_group), options, 1);
}

inline const Submission& of(Simulator& sim, Rank rank, std::uint64_t ticket) {
  return sim.at(rank).submissions.at(ticket);
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace farandole::test

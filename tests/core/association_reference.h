/// The association once more, on whole arrays and as plainly as possible.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "kernel_reference.h"

namespace farandole::reference {

using Groups = std::vector<std::vector<int>>;

/// What values are multiplied by before they are rounded.
struct Shares {
  double host = 1.0;           ///< those of hosts
  std::vector<double> rounds;  ///< those of the tree, round after round; none for one host
};

/// All of the factor at the end.
inline Shares undivided(const Groups& groups, double postscale) {
  if (groups.size() == 1) return {postscale, {}};
  Shares shares;
  for (std::size_t hosts = 1; hosts < groups.size(); hosts *= 2) shares.rounds.push_back(1.0);
  shares.rounds.back() = postscale;
  return shares;
}

/// Sums of half types are halved as often as they may double, while the factor asks for it.
inline Shares shares_of(const Groups& groups, DType dtype, ReduceOp op, double postscale) {
  Shares shares = undivided(groups, postscale);
  const bool half = dtype == DType::Float16 || dtype == DType::BFloat16;
  if (groups.size() == 1 || !half || op != ReduceOp::Sum || postscale == 0.0) return shares;
  double& left = shares.rounds.back();
  const auto halve = [&left](double& share) {
    if (left >= 1.0 || left <= -1.0) return;
    share /= 2;
    left *= 2;
  };
  std::size_t largest = 0;
  for (const auto& group : groups) largest = std::max(largest, group.size());
  for (std::size_t members = 1; members < largest; members *= 2) halve(shares.host);
  for (std::size_t round = 0; round + 1 < shares.rounds.size(); ++round) {
    halve(shares.rounds[round]);
  }
  return shares;
}

inline Bytes associate(const Groups& groups, const std::vector<Bytes>& inputs,
                       const Reduction& reduction) {
  const auto [dtype, op, prescale, postscale] = reduction;
  const Shares shares = shares_of(groups, dtype, op, postscale);
  std::vector<Bytes> hosts;
  for (const auto& group : groups) {
    std::vector<Bytes> sources;
    for (const int member : group) {
      sources.push_back(scale(inputs[static_cast<std::size_t>(member)], dtype, prescale));
    }
    hosts.push_back(reduce(sources, dtype, op, shares.host));
  }
  const std::size_t power = std::bit_floor(hosts.size());
  auto share = shares.rounds.begin();
  if (hosts.size() > power) {
    for (std::size_t i = 0; i < power; ++i) {
      std::vector<Bytes> meeting{hosts[i]};
      if (i + power < hosts.size()) meeting.push_back(hosts[i + power]);
      hosts[i] = reduce(meeting, dtype, op, *share);
    }
    ++share;
  }
  for (std::size_t distance = 1; distance < power; distance *= 2, ++share) {
    for (std::size_t i = 0; i < power; i += 2 * distance) {
      hosts[i] = reduce({hosts[i], hosts[i + distance]}, dtype, op, *share);
    }
  }
  return hosts[0];
}

}  // namespace farandole::reference

#include "backends/backend_factory.h"

#include <algorithm>
#include <utility>

#include "backends/shm/pipes.h"

namespace farandole {

BackendFactory::BackendFactory(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
                               std::shared_ptr<Mesh> mesh)
    : self_(self), groups_(std::move(groups)) {
  if (!host.ranks.empty()) {
    resources_.pipes = std::make_shared<ShmPipes>(host.ranks, host.members, host.self);
  }
  resources_.host = std::move(host);
  resources_.mesh = std::move(mesh);
}

Members BackendFactory::members(std::span<const Rank> ranks) const {
  Members members;
  members.ranks.assign(ranks.begin(), ranks.end());
  const auto set_rank = [&](Rank rank) {
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return at == ranks.end() || *at != rank ? -1 : static_cast<int>(at - ranks.begin());
  };
  members.self = set_rank(self_);
  for (const auto& group : groups_) {
    std::vector<int> together;
    for (const Rank rank : group) {
      if (const int member = set_rank(rank); member >= 0) together.push_back(member);
    }
    if (!together.empty()) members.groups.push_back(std::move(together));
  }
  // The first rank of a group may not be a member, so the order of groups can change.
  std::sort(members.groups.begin(), members.groups.end());
  return members;
}

bool BackendFactory::is_cut_off(int channel) const noexcept {
  if (channel <= 0 || channel >= kShmChannels) return false;
  return std::ranges::any_of(groups_, [&](const auto& group) {
    const ShmExtent extent = channel_extent(static_cast<int>(group.size()), channel);
    return group.size() > 1 && extent.offset + extent.bytes > segment_limit_;
  });
}

Result<std::unique_ptr<Backend>> BackendFactory::open(std::span<const Rank> ranks, int channel) {
  Members members = this->members(ranks);
  if (members.self < 0) {
    return Error{.code = Code::Internal, .message = "A process set without this rank was opened"};
  }
  return open_backend(std::move(members), is_cut_off(channel) ? kNoChannel : channel, resources_);
}

}  // namespace farandole

/// Hosts with several ranks each as threads of one process.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "backends/hierarchical/hierarchical.h"
#include "backends/registry.h"
#include "shm_world.h"
#include "tcp_world.h"

namespace farandole::testing {

/// A world of hosts as threads of one process: shared memory in a host, sockets between hosts.
class Hosts {
 public:
  explicit Hosts(const std::vector<std::vector<Rank>>& groups, int buffer_bytes = 0)
      : groups_(groups) {
    std::vector<std::vector<int>> as_ints;
    for (const std::vector<Rank>& group : groups) {
      as_ints.emplace_back(group.begin(), group.end());
      size_ += static_cast<int>(group.size());
      const ShmWorldOptions options{.size = static_cast<int>(group.size())};
      memory_.push_back(std::make_unique<ShmWorld>(options));
    }
    network_ =
        std::make_unique<TcpWorld>(WorldOptions{.groups = as_ints, .buffer_bytes = buffer_bytes});
  }

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::vector<std::vector<Rank>> groups() const {
    std::vector<std::vector<Rank>> groups = groups_;
    for (std::vector<Rank>& group : groups) {
      for (Rank& rank : group) rank = network_->rank(rank);
    }
    return groups;
  }
  [[nodiscard]] std::vector<Rank> global(const std::vector<Rank>& ranks) const {
    std::vector<Rank> all;
    for (const Rank rank : ranks) all.push_back(network_->rank(rank));
    return all;
  }

  [[nodiscard]] std::unique_ptr<BackendFactory> factory(int self) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto at = std::find(groups_[g].begin(), groups_[g].end(), self);
      if (at == groups_[g].end()) continue;
      ShmHost host;
      if (groups_[g].size() > 1) {
        host = {global(groups_[g]), memory_[g]->shm_members(),
                static_cast<int>(at - groups_[g].begin()), nullptr};
        host.own = &memory_[g]->segment(host.self);
      }
      return std::make_unique<BackendFactory>(network_->rank(self), groups(), host,
                                              network_->mesh(self));
    }
    return nullptr;
  }

  /// The world's backend of a rank, with borders of one's own. Without BackendFactory, so once for
  /// a rank.
  [[nodiscard]] std::unique_ptr<Backend> hierarchical(int self, HierarchicalTuning tuning,
                                                      ShmTuning inside) {
    Members members = network_->members(self);
    std::unique_ptr<Backend> local;
    Members together = members_of_host(members);
    if (together.size() > 1) {
      const HostPlan plan = HostPlan::of(members);
      const ShmWorld& memory = *memory_[static_cast<std::size_t>(plan.host)];
      local = std::make_unique<ShmBackend>(std::move(together), memory.shm_members(),
                                           memory.pipes(plan.index), ShmChannelUse{}, inside);
    }
    std::unique_ptr<Backend> carriers;
    if (auto among = carriers_of(members)) {
      carriers = std::make_unique<TcpBackend>(*std::move(among), network_->mesh(self));
    }
    auto network = std::make_unique<TcpBackend>(members, network_->mesh(self));
    return std::make_unique<HierarchicalBackend>(std::move(members), std::move(local),
                                                 std::move(network), std::move(carriers), tuning);
  }
  /// What others see when a rank's process ends, once no backend of it is left.
  void kill(int rank) { network_->kill(rank); }
  [[nodiscard]] Rank rank(int member) const { return network_->rank(member); }

 private:
  std::vector<std::vector<Rank>> groups_;
  int size_ = 0;
  std::vector<std::unique_ptr<ShmWorld>> memory_;
  std::unique_ptr<TcpWorld> network_;
};

}  // namespace farandole::testing

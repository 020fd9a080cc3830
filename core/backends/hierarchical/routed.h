/// Members on several hosts, some of them together: bytes go through shared memory or over the
/// network, whichever reaches the peer. The algorithms are the defaults: every pair of members
/// exchanges directly, so a byte crosses the network once for every member that needs it.
/// HierarchicalBackend does better where the members of a host have memory in common.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/resources.h"

namespace farandole {

class RoutedBackend : public Backend {
 public:
  /// `local`: a backend over the members of the own group, in the same order; null if this one is
  /// alone in it. `network`: one over the same members as this; it sends and receives only.
  RoutedBackend(Members members, std::unique_ptr<Backend> local, std::unique_ptr<Backend> network);

  [[nodiscard]] std::string_view name() const noexcept override { return "routed"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  void begin(OperationTag operation) override;
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) final;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) final;

 protected:
  /// Null if this member is alone on its host.
  [[nodiscard]] Backend* local() const noexcept { return local_.get(); }

 private:
  std::unique_ptr<Backend> local_;
  std::unique_ptr<Backend> network_;
  std::vector<int> local_index_;  // by member: its place in local_; -1: elsewhere
};

/// The first two parts of a RoutedBackend, from the registry. Null: this member is alone there.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_inside_host(const Members& members, int channel,
                                                                const Resources& resources);
/// As among members that are a host each, so that everything goes over the network.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_network(Members members,
                                                            const Resources& resources);

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_routed(Members members, int channel,
                                                           const Resources& resources);

}  // namespace farandole

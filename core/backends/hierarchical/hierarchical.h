/// Members on several hosts, some of them together: through shared memory inside a host, and
/// between hosts over the network, every byte once.
///
/// Some members of every host are its carriers (hosts.h). Operations inside a host are those of
/// a backend over its members, operations between hosts those of a backend over the carriers with
/// one index; a collective here is a pipeline of both (hosts.h). As the host's value comes
/// first and the carriers compute the tree of the hosts, reductions have the one association.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/hierarchical/collectives.h"
#include "backends/registry.h"

namespace farandole {

/// Members on several hosts, some of them together: bytes go through shared memory or over the
/// network, whichever reaches the peer. The algorithms are the defaults: every pair of members
/// exchanges directly, so a byte crosses the network once for every member that needs it.
/// HierarchicalBackend does better where the members of a host have memory in common.
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

/// Borders; results do not depend on them. The same on every member.
struct HierarchicalTuning {
  /// Up to here every carrier carries everything: one message costs less than a meeting more.
  std::size_t small_bytes = std::size_t{4} << 10;
  /// What a carrier carries in a round, at least and at most. Short rounds let memory and network
  /// overlap early; long ones keep the network busy between two meetings.
  std::size_t least_share_bytes = std::size_t{256} << 10;
  std::size_t most_share_bytes = std::size_t{2} << 20;
};

class HierarchicalBackend final : public RoutedBackend {
 public:
  /// `local`, `network`: see RoutedBackend. `carriers`: over carriers_of(members); null where this
  /// member is none. Some host has more than one member, and there is more than one host.
  HierarchicalBackend(Members members, std::unique_ptr<Backend> local,
                      std::unique_ptr<Backend> network, std::unique_ptr<Backend> carriers,
                      HierarchicalTuning tuning = {});

  [[nodiscard]] std::string_view name() const noexcept override { return "hierarchical"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  void begin(OperationTag operation) override;
  std::unique_ptr<Operation> start(Verb verb) override;

 private:
  /// Specialised for what it has a way of its own for.
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb) {
    return Backend::start(std::move(verb));
  }
  [[nodiscard]] bool small(std::size_t bytes) const noexcept;
  /// For an operation in which the carriers of a host carry that much together.
  [[nodiscard]] HostBackends through(std::size_t bytes) const noexcept;
  /// The same in several rounds or in one, but never everything by every carrier.
  [[nodiscard]] HostBackends shared(std::size_t bytes) const noexcept;

  std::unique_ptr<Backend> carriers_;
  HostPlan plan_;
  HierarchicalTuning tuning_;
};

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_hierarchical(Members members, int channel,
                                                                 const Resources& resources);

}  // namespace farandole

/// Members on several hosts, some of them together: bytes go through shared memory or over the
/// network, whichever reaches the peer; the algorithms are the defaults, so the association is too.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"

namespace rueda {

class RoutedBackend final : public Backend {
 public:
  /// `local`: a backend over the members of the own group, in the same order. `network`: one over
  /// the same members as this.
  RoutedBackend(Members members, std::unique_ptr<Backend> local, std::unique_ptr<Backend> network);

  [[nodiscard]] std::string_view name() const noexcept override { return "routed"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;

 private:
  std::unique_ptr<Backend> local_;
  std::unique_ptr<Backend> network_;
  std::vector<int> local_index_;  // by member: its place in local_, -1 if it is elsewhere
};

}  // namespace rueda

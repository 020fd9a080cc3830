/// Members on different hosts: sends and receives over the mesh. Members that are a host each
/// reduce from pair to pair where that is faster; everything else goes by the defaults.
#pragma once

#include <poll.h>

#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/registry.h"
#include "transport/mesh.h"

namespace farandole {

class TcpBackend final : public Backend {
 public:
  /// The mesh must have a link to every member that is sent to or received from; others may lack
  /// one.
  TcpBackend(Members members, std::shared_ptr<Mesh> mesh);

  [[nodiscard]] std::string_view name() const noexcept override { return "tcp"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  void begin(OperationTag operation) override { mesh_->begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;

  std::unique_ptr<Operation> start(Verb verb) override;

  /// See Mesh::wants().
  void wants(std::vector<pollfd>& polled) const { mesh_->wants(polled); }

 private:
  /// Specialised for what it has a way of its own for.
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb) {
    return Backend::start(std::move(verb));
  }
  enum class Way { Default, Doubling, Halving };
  [[nodiscard]] Way way(std::size_t bytes) const noexcept;
  [[nodiscard]] const std::vector<PeerLink*>& links(int peer) const noexcept;
  template <bool sending>
  [[nodiscard]] std::unique_ptr<Operation> transfer(int peer, std::span<std::byte> data);

  std::shared_ptr<Mesh> mesh_;
  std::vector<std::vector<PeerLink*>> links_;  // by set rank; owned by the mesh
};

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_tcp(Members members, int channel,
                                                        const Resources& resources);

}  // namespace farandole

/// Members on one host without flags and slots of their own: sends and receives through the rings
/// that any two ranks of the host have, everything else by the defaults.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/resources.h"
#include "backends/shm/pipes.h"

namespace farandole {

class PipesBackend : public Backend {
 public:
  /// `local_indices`: by set rank, the place of the member in `pipes`.
  PipesBackend(Members members, std::shared_ptr<ShmPipes> pipes, std::vector<int> local_indices);

  [[nodiscard]] std::string_view name() const noexcept override { return "pipes"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  void begin(OperationTag operation) override { pipes_->begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) final;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) final;

 private:
  std::shared_ptr<ShmPipes> pipes_;
  std::vector<int> local_indices_;
};

/// The places of ranks of this host in it.
[[nodiscard]] std::vector<int> local_indices(const ShmHost& host, std::span<const Rank> ranks);

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_pipes(Members members, int channel,
                                                          const Resources& resources);

}  // namespace farandole

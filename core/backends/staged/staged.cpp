#include "backends/staged/staged.h"

#include <utility>

#include "backends/staged/pipeline.h"
#include "backends/staged/plans.h"

namespace rueda {

StagedBackend::StagedBackend(Backend& host, std::shared_ptr<EngineDevice> device)
    : DeviceBackend(host.members()),
      host_(host),
      device_(std::move(device)),
      name_("staged." + std::string(host.name())) {}

std::unique_ptr<Operation> StagedBackend::run(std::unique_ptr<StagedPlan> plan) {
  return std::make_unique<StagedPipeline>(device_.get(), std::move(plan));
}

std::unique_ptr<Operation> StagedBackend::send(int peer, std::span<const std::byte> data) {
  return run(staged_range(device_.get(), data, {},
                          [this, peer](std::span<const std::byte> in, std::span<std::byte>) {
                            return host_.send(peer, in);
                          }));
}

std::unique_ptr<Operation> StagedBackend::recv(int peer, std::span<std::byte> data) {
  return run(staged_range(device_.get(), {}, data,
                          [this, peer](std::span<const std::byte>, std::span<std::byte> out) {
                            return host_.recv(peer, out);
                          }));
}

std::unique_ptr<Operation> StagedBackend::allreduce(std::span<const Piece> pieces,
                                                    const Reduction& reduction) {
  if (auto refused = refuse(reduction)) return refused;
  return run(staged_allreduce(host_, device_.get(), pieces, reduction));
}

std::unique_ptr<Operation> StagedBackend::allgather(GatherPlan plan) {
  return run(staged_allgather(host_, device_.get(), std::move(plan)));
}

std::unique_ptr<Operation> StagedBackend::reducescatter(std::span<const ScatterPiece> pieces,
                                                        const Reduction& reduction) {
  if (auto refused = refuse(pieces, reduction)) return refused;
  return run(staged_reducescatter(host_, device_.get(), pieces, reduction));
}

std::unique_ptr<Operation> StagedBackend::alltoall(AlltoallPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  return run(staged_alltoall(host_, device_.get(), std::move(plan)));
}

std::unique_ptr<Operation> StagedBackend::broadcast(std::span<const std::byte> in,
                                                    std::span<std::byte> out, int root) {
  const bool source = members().self == root;
  return run(staged_range(device_.get(), source ? in : std::span<const std::byte>(), out,
                          [this, root](std::span<const std::byte> from, std::span<std::byte> to) {
                            return host_.broadcast(from, to, root);
                          }));
}

Result<void> StagedBackend::follow(std::shared_ptr<const DevicePoint> point) {
  if (auto fine = point->precede(device_->to_host()); !fine) return fine;
  return point->precede(device_->to_device());
}

}  // namespace rueda

#include "backends/staged/staged.h"

#include <utility>
#include <variant>

#include "backends/registry.h"
#include "backends/staged/pipeline.h"
#include "backends/staged/plans.h"

namespace farandole {

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

template <class Of>
std::unique_ptr<Operation> StagedBackend::perform(Of verb) {
  if (auto refused = refuse(verb)) return refused;
  return run(staged_plan(host_, device_.get(), std::move(verb)));
}

template <>
std::unique_ptr<Operation> StagedBackend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  const bool source = members().self == root;
  return run(staged_range(device_.get(), source ? in : std::span<const std::byte>(), out,
                          [this, root](std::span<const std::byte> from, std::span<std::byte> to) {
                            return host_.start(Broadcast{from, to, root});
                          }));
}

template <>
std::unique_ptr<Operation> StagedBackend::perform(Barrier verb) {
  return host_.start(verb);
}

std::unique_ptr<Operation> StagedBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

std::unique_ptr<Operation> StagedBackend::run_on_host(std::vector<HostedTensor> tensors,
                                                      HostWork work) {
  return run(staged_whole(device_.get(), std::move(tensors), std::move(work)));
}

Result<void> StagedBackend::follow(std::shared_ptr<const DevicePoint> point) {
  if (auto fine = point->precede(device_->to_host()); !fine) return fine;
  return point->precede(device_->to_device());
}

std::unique_ptr<DeviceBackend> open_staged(Backend& host, std::shared_ptr<EngineDevice> device) {
  return std::make_unique<StagedBackend>(host, std::move(device));
}

}  // namespace farandole

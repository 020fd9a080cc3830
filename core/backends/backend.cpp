#include "backends/backend.h"

#include "backends/direct_allreduce.h"
#include "backends/direct_collectives.h"
#include "backends/failed_operation.h"
#include "backends/staging.h"

namespace rueda {

Backend::Backend(Members members)
    : members_(std::move(members)),
      association_(members_.groups),
      staging_(std::make_unique<Staging>()) {}

Backend::~Backend() = default;

std::string_view Backend::path(Kind /*kind*/, std::size_t /*bytes*/) const noexcept {
  return name();
}

std::unique_ptr<Operation> Backend::allreduce(std::span<const Piece> pieces,
                                              const Reduction& reduction) {
  if (reduction.op == ReduceOp::Adasum ||
      (reduction.op == ReduceOp::Average && reduction.dtype != DType::Bool)) {
    return failed_operation(Code::Unsupported, std::string(name()) + " cannot reduce " +
                                                   std::string(name_of(reduction.dtype)) + " by " +
                                                   std::string(name_of(reduction.op)));
  }
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return direct_allreduce(*this, *staging_, pieces, reduction,
                          plan_direct(count, size_of(reduction.dtype), members_.size()));
}

std::unique_ptr<Operation> Backend::allgather(GatherPlan plan) {
  return direct_allgather(*this, *staging_, std::move(plan));
}

std::unique_ptr<Operation> Backend::reducescatter(std::span<const ScatterPiece> /*pieces*/,
                                                  const Reduction& /*reduction*/) {
  return failed_operation(Code::Unsupported, std::string(name()) + " has no reducescatter");
}

std::unique_ptr<Operation> Backend::alltoall(AlltoallPlan /*plan*/) {
  return failed_operation(Code::Unsupported, std::string(name()) + " has no alltoall");
}

std::unique_ptr<Operation> Backend::broadcast(std::span<const std::byte> in,
                                              std::span<std::byte> out, int root) {
  return tree_broadcast(*this, in, out, root);
}

std::unique_ptr<Operation> Backend::barrier() { return dissemination_barrier(*this); }

}  // namespace rueda

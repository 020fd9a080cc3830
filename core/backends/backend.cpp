#include "backends/backend.h"

#include <algorithm>
#include <utility>

#include "backends/algorithms/direct_allreduce.h"
#include "backends/algorithms/direct_collectives.h"
#include "backends/algorithms/direct_reducescatter.h"
#include "backends/buffers/staging.h"
#include "backends/failed_operation.h"

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
  if (auto refused = refuse(reduction)) return refused;
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return direct_allreduce(*this, *staging_, pieces, reduction,
                          plan_direct(count, size_of(reduction.dtype), members_.size()));
}

std::unique_ptr<Operation> Backend::refuse(const Reduction& reduction) const {
  const bool known = reduction.op != ReduceOp::Adasum &&
                     (reduction.op != ReduceOp::Average || reduction.dtype == DType::Bool);
  if (known) return nullptr;
  return failed_operation(Code::Unsupported, std::string(name()) + " cannot reduce " +
                                                 std::string(name_of(reduction.dtype)) + " by " +
                                                 std::string(name_of(reduction.op)));
}

std::unique_ptr<Operation> Backend::refuse(std::span<const ScatterPiece> pieces,
                                           const Reduction& reduction) const {
  for (const ScatterPiece& piece : pieces) {
    if (piece.begins.size() != members_.ranks.size() + 1 || piece.begins.front() != 0 ||
        !std::is_sorted(piece.begins.begin(), piece.begins.end())) {
      return failed_operation(Code::InvalidArgument,
                              "the parts of a reducescatter do not fit the members");
    }
  }
  return refuse(reduction);
}

std::unique_ptr<Operation> Backend::refuse(const AlltoallPlan& plan) const {
  const auto self = static_cast<std::size_t>(members_.self);
  std::size_t brought = 0;
  for (const auto& part : plan.in) brought += part.size();
  if (plan.in.size() == members_.ranks.size() && plan.out.size() == members_.ranks.size() &&
      plan.in[self].size() == plan.out[self].size() && brought <= plan.longest) {
    return nullptr;
  }
  return failed_operation(Code::InvalidArgument,
                          "the plan of an alltoall does not fit this member's contribution");
}

std::unique_ptr<Operation> Backend::allgather(GatherPlan plan) {
  return direct_allgather(*this, *staging_, std::move(plan));
}

std::unique_ptr<Operation> Backend::reducescatter(std::span<const ScatterPiece> pieces,
                                                  const Reduction& reduction) {
  if (auto refused = refuse(pieces, reduction)) return refused;
  return direct_reducescatter(*this, *staging_, pieces, reduction,
                              direct_slice(size_of(reduction.dtype), members_.size()));
}

std::unique_ptr<Operation> Backend::alltoall(AlltoallPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  return direct_alltoall(*this, std::move(plan));
}

std::unique_ptr<Operation> Backend::broadcast(std::span<const std::byte> in,
                                              std::span<std::byte> out, int root) {
  return tree_broadcast(*this, in, out, root);
}

std::unique_ptr<Operation> Backend::barrier() { return meet(); }

std::unique_ptr<Operation> Backend::meet() { return dissemination_barrier(*this); }

}  // namespace rueda

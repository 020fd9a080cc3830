#include "backends/backend.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "backends/algorithms/direct.h"
#include "backends/buffers/spans.h"
#include "backends/buffers/staging.h"
#include "backends/operation.h"

namespace farandole {

Backend::Backend(Members members)
    : members_(std::move(members)),
      association_(members_.groups),
      staging_(std::make_unique<Staging>()) {}

Backend::~Backend() = default;

std::string_view Backend::path(Kind /*kind*/, std::size_t /*bytes*/) const noexcept {
  return name();
}

template <>
std::unique_ptr<Operation> Backend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return direct_allreduce(*this, *staging_, pieces, reduction,
                          plan_direct(count, size_of(reduction.dtype), members_.size()));
}

std::unique_ptr<Operation> Backend::refuse(const Allreduce& verb) const {
  const Reduction& reduction = verb.reduction;
  const bool known = reduction.op != ReduceOp::Adasum &&
                     (reduction.op != ReduceOp::Average || reduction.dtype == DType::Bool);
  if (known) return nullptr;
  return failed_operation(Code::Unsupported, std::string(name()) + " cannot reduce " +
                                                 std::string(name_of(reduction.dtype)) + " by " +
                                                 std::string(name_of(reduction.op)));
}

std::unique_ptr<Operation> Backend::refuse(const Reducescatter& verb) const {
  for (const ScatterPiece& piece : verb.pieces) {
    if (piece.begins.size() != members_.ranks.size() + 1 || piece.begins.front() != 0 ||
        !std::is_sorted(piece.begins.begin(), piece.begins.end())) {
      return failed_operation(Code::InvalidArgument,
                              "the parts of a reducescatter do not fit the members");
    }
  }
  return refuse(Allreduce{{}, verb.reduction});
}

std::unique_ptr<Operation> Backend::refuse(const GatherPlan& plan) const {
  if (plan.out.size() == members_.ranks.size() &&
      total_bytes(plan.in) == total_bytes(plan.out[static_cast<std::size_t>(members_.self)])) {
    return nullptr;
  }
  return failed_operation(Code::InvalidArgument,
                          "the plan of an allgather does not fit this member's contribution");
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

template <>
std::unique_ptr<Operation> Backend::perform(GatherPlan plan) {
  return direct_allgather(*this, *staging_, std::move(plan));
}

template <>
std::unique_ptr<Operation> Backend::perform(Reducescatter verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  return direct_reducescatter(*this, *staging_, pieces, reduction,
                              direct_slice(size_of(reduction.dtype), members_.size()));
}

template <>
std::unique_ptr<Operation> Backend::perform(AlltoallPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  return direct_alltoall(*this, std::move(plan));
}

template <>
std::unique_ptr<Operation> Backend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  return tree_broadcast(*this, in, out, root);
}

template <>
std::unique_ptr<Operation> Backend::perform(Barrier /*verb*/) {
  return meet();
}

std::unique_ptr<Operation> Backend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

std::unique_ptr<Operation> Backend::meet() { return dissemination_barrier(*this); }

}  // namespace farandole

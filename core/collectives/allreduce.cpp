/// Allreduce: every rank gets the reduction of all ranks' tensors.
/// Source: MPI 4.1, section 6.9.6.

#include <vector>

#include "collectives/collective.h"

namespace rueda {

namespace {

/// Averaging is a sum whose postscale is divided by the number of members, on the double factor.
Reduction reduction_of(const Signature& signature, int members) {
  Reduction reduction{.dtype = signature.dtype,
                      .op = signature.op,
                      .prescale = signature.prescale,
                      .postscale = signature.postscale};
  if (signature.op == ReduceOp::Average && signature.dtype != DType::Bool) {
    reduction.op = ReduceOp::Sum;
    reduction.postscale /= members;
  }
  return reduction;
}

std::string factor_disagreement(const Signature& one, const Signature& other) {
  if (one.prescale == other.prescale && one.postscale == other.postscale) return {};
  return "Mismatched prescale and/or postscale factors: One rank sent factors (" +
         std::to_string(one.prescale) + ", " + std::to_string(one.postscale) +
         "), but another rank sent factors (" + std::to_string(other.prescale) + ", " +
         std::to_string(other.postscale) + ").";
}

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (auto text = factor_disagreement(one, other); !text.empty()) return text;
  if (one.op != other.op) {
    return "Mismatched reduction operation: One rank specified " + std::string(name_of(one.op)) +
           ", but another rank specified " + std::string(name_of(other.op)) + ".";
  }
  return device_disagreement(one, other);
}

Result<void> check(const Signature& signature, const Members&) {
  if (signature.op == ReduceOp::Adasum) {
    return Error{.code = Code::Unsupported, .message = "No Adasum operation enabled"};
  }
  return {};
}

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  std::vector<Piece> pieces;
  pieces.reserve(tasks.size());
  for (const Task& task : tasks) {
    pieces.push_back({.in = task.in,
                      .out = task.out,
                      .count = static_cast<std::size_t>(element_count(task.signature->shape))});
  }
  return backend.allreduce(pieces,
                           reduction_of(*tasks.front().signature, backend.members().size()));
}

}  // namespace

const Collective kAllreduce{.kind = Kind::Allreduce,
                            .rules = {.name = "ALLREDUCE",
                                      .prefix = "allreduce",
                                      .fusable = true,
                                      .runs_with_joined = true,
                                      .disagreement = disagreement},
                            .check = check,
                            .start = start};

}  // namespace rueda

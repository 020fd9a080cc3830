#include "collectives/collective.h"

#include <algorithm>
#include <cmath>

#include "collectives/integer_average.h"
#include "kernels/integer_average.h"

namespace farandole {

namespace {

std::string device_name(Device device) { return device == Device::Host ? "CPU" : "GPU"; }

}  // namespace

std::string basic_disagreement(const Signature& one, const Signature& other) {
  if (one.dtype != other.dtype) {
    return "Mismatched data types: One rank had type " + std::string(name_of(one.dtype)) +
           ", but another rank had type " + std::string(name_of(other.dtype)) + ".";
  }
  if (one.kind != other.kind) {
    return "Mismatched operations: One rank did an " + std::string(rules_of(one.kind).name) +
           ", but another rank did an " + std::string(rules_of(other.kind).name) + ".";
  }
  return {};
}

std::string shape_disagreement(const Signature& one, const Signature& other) {
  if (one.shape == other.shape) return {};
  return "Mismatched " + std::string(rules_of(one.kind).name) +
         " tensor shapes: One rank sent a tensor of shape " + to_string(one.shape) +
         ", but another rank sent a tensor of shape " + to_string(other.shape) + ".";
}

std::string op_disagreement(const Signature& one, const Signature& other) {
  if (one.op == other.op) return {};
  return "Mismatched reduction operation: One rank specified " + std::string(name_of(one.op)) +
         ", but another rank specified " + std::string(name_of(other.op)) + ".";
}

std::string root_disagreement(const Signature& one, const Signature& other) {
  if (one.root == other.root) return {};
  return "Mismatched " + std::string(rules_of(one.kind).name) +
         " root ranks: One rank specified root rank " + std::to_string(one.root) +
         ", but another rank specified root rank " + std::to_string(other.root) + ".";
}

std::string factor_disagreement(const Signature& one, const Signature& other) {
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  if (same(one.prescale, other.prescale) && same(one.postscale, other.postscale)) return {};
  return "Mismatched prescale and/or postscale factors: One rank sent factors (" +
         std::to_string(one.prescale) + ", " + std::to_string(one.postscale) +
         "), but another rank sent factors (" + std::to_string(other.prescale) + ", " +
         std::to_string(other.postscale) + ").";
}

std::string row_disagreement(const Signature& one, const Signature& other) {
  const std::string name(rules_of(one.kind).name);
  if (one.shape.empty() || other.shape.empty()) {
    return "Rank tried to " + name + " a rank-zero tensor.";
  }
  const std::string mismatch = "Mismatched " + name + " tensor shapes: One rank sent a tensor ";
  if (one.shape.size() != other.shape.size()) {
    return mismatch + "of rank " + std::to_string(one.shape.size()) +
           ", but another rank sent a tensor of rank " + std::to_string(other.shape.size()) + ".";
  }
  for (std::size_t d = 1; d < one.shape.size(); ++d) {
    if (one.shape[d] == other.shape[d]) continue;
    const std::string extent = "with dimension " + std::to_string(d) + " equal to ";
    return mismatch + extent + std::to_string(one.shape[d]) + ", but another rank sent a tensor " +
           extent + std::to_string(other.shape[d]) + ".";
  }
  return {};
}

std::string device_disagreement(const Signature& one, const Signature& other) {
  if (one.device == other.device) return {};
  return "Mismatched " + std::string(rules_of(one.kind).name) +
         " CPU/GPU device selection: One rank specified device " + device_name(one.device) +
         ", but another rank specified device " + device_name(other.device) + ".";
}

std::string describe_tensor(const Signature& signature, std::string_view how,
                            std::string_view source) {
  const Rules& rules = rules_of(signature.kind);
  std::string text(rules.name);
  text.append(how) += " of " + std::string(name_of(signature.dtype)) + " ";
  if (rules.rows_may_differ && !signature.shape.empty()) {
    const std::string shape = to_string(signature.shape);
    text += "[*" + shape.substr(shape.find_first_of(",]"));
  } else {
    text += to_string(signature.shape);
  }
  if (signature.prescale != 1.0 || signature.postscale != 1.0) {
    text += " scaled by " + std::to_string(signature.prescale) + " and " +
            std::to_string(signature.postscale);
  }
  text.append(source);
  if (signature.group.size != 0) {
    text += " in a group of " + std::to_string(signature.group.size);
  }
  if (signature.device != Device::Host) text += " on GPU";
  return text;
}

std::string describe_tensor(const Signature& signature) {
  return describe_tensor(signature, {}, {});
}

std::string describe_reduction(const Signature& signature) {
  return describe_tensor(signature, " " + std::string(name_of(signature.op)),
                         signature.absent ? " (absent)" : "");
}

Result<void> check_dtype(const Signature& signature) {
  if (!reduces(signature.kind) || !moved_only(signature.dtype)) return {};
  std::string_view remedy = "Cast it to float32 or bfloat16.";
  if (signature.dtype == DType::UInt32 || signature.dtype == DType::UInt64) {
    remedy = "Cast it to int64.";
  } else if (signature.dtype == DType::Complex64 || signature.dtype == DType::Complex128) {
    remedy =
        "Sum or average its real and imaginary parts: torch.view_as_real(tensor), "
        "array.view(float).";
  }
  return Error{.code = Code::InvalidArgument,
               .message = "Tensor type " + std::string(name_of(signature.dtype)) +
                          " is not supported in reductions: it is only moved (broadcast, "
                          "allgather, alltoall). " +
                          std::string(remedy)};
}

Result<void> check_root(const Signature& signature, const Members& members) {
  if (std::ranges::find(members.ranks, signature.root) != members.ranks.end()) return {};
  return Error{.code = Code::InvalidArgument,
               .message = std::string(rules_of(signature.kind).prefix) +
                          " received invalid root rank " + std::to_string(signature.root) +
                          " for provided process set"};
}

std::size_t row_bytes(const Signature& signature) noexcept {
  std::size_t bytes = size_of(signature.dtype);
  for (std::size_t i = 1; i < signature.shape.size(); ++i) {
    bytes *= static_cast<std::size_t>(signature.shape[i]);
  }
  return bytes;
}

std::int64_t first_row(std::int64_t rows, std::int64_t size, std::int64_t member) {
  return rows / size * member + std::min(member, rows % size);
}

Shape shape_of_result(const Signature& signature, const Members& members) {
  Shape shape = signature.shape;
  if (signature.kind == Kind::Reducescatter) {
    const std::int64_t rows = shape.front();
    const std::int64_t size = members.size();
    shape.front() = first_row(rows, size, members.self + 1) - first_row(rows, size, members.self);
  }
  return shape;
}

int root_of(const Signature& signature, const Members& members) noexcept {
  return static_cast<int>(std::ranges::find(members.ranks, signature.root) - members.ranks.begin());
}

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

void combine_shares(std::byte* out, std::span<const std::byte* const> shares, std::size_t count,
                    const Signature& signature, const Backend& backend) {
  const int members = backend.members().size();
  const Reduction reduction = reduction_of(signature, members);
  if (averages_integers(signature, members)) {
    average_integers(out, shares, count, reduction.dtype, reduction.postscale);
  } else {
    backend.association().evaluate(out, shares, count, reduction.dtype, reduction.op,
                                   reduction.postscale);
  }
}

}  // namespace farandole

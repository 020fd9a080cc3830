/// Reducescatter: every rank gets its share of the rows of the reduction of all ranks' tensors.
/// Source: MPI 4.1, section 6.11 (MPI_Reduce_scatter).

#include <vector>

#include "backends/operation.h"
#include "collectives/collective.h"
#include "collectives/integer_average.h"

namespace farandole {

namespace {

/// If one rank averages and another one sums, their postscales differ: they contain the division.
std::string averaging_disagreement(const Signature& one, const Signature& other) {
  if (one.op == other.op) return {};
  return "Mismatched prescale and/or postscale factors: One rank specified " +
         std::string(name_of(one.op)) + ", but another rank specified " +
         std::string(name_of(other.op)) + ".";
}

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (auto text = factor_disagreement(one, other); !text.empty()) return text;
  if (auto text = averaging_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

Result<void> check(const Task& task, const Members&) {
  const Signature& signature = *task.signature;
  if (signature.op != ReduceOp::Average && signature.op != ReduceOp::Sum) {
    return Error{.code = Code::Unsupported,
                 .message = "reducescatter supports Average and Sum only, not " +
                            std::string(name_of(signature.op))};
  }
  if (signature.shape.empty()) {
    return Error{
        .code = Code::InvalidArgument,
        .message = "reducescatter needs a tensor with at least one dimension: its rows are shared"};
  }
  return {};
}

/// Memory for the share of this member.
Result<std::byte*> memory_of(const Task& task, const Members& members) {
  return output_of(task, shape_of_result(*task.signature, members));
}

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  const std::int64_t size = backend.members().size();
  std::vector<ScatterPiece> pieces;
  pieces.reserve(tasks.size());
  for (const Task& task : tasks) {
    const Signature& signature = *task.signature;
    const std::int64_t rows = signature.shape.front();
    const std::size_t row = row_bytes(signature) / size_of(signature.dtype);
    auto memory = memory_of(task, backend.members());
    if (!memory) return std::make_unique<FailedOperation>(std::move(memory).error());
    ScatterPiece& piece =
        pieces.emplace_back(ScatterPiece{.in = task.in, .out = *memory, .begins = {}});
    for (std::int64_t m = 0; m <= size; ++m) {
      piece.begins.push_back(static_cast<std::size_t>(first_row(rows, size, m)) * row);
    }
  }
  const Signature& first = *tasks.front().signature;
  const Reduction reduction = reduction_of(first, backend.members().size());
  if (averages_integers(first, backend.members().size())) {
    const auto self = static_cast<std::size_t>(backend.members().self);
    std::vector<AveragedPiece> averaged;
    averaged.reserve(pieces.size());
    for (const ScatterPiece& piece : pieces) {
      averaged.push_back({.in = piece.in,
                          .count = piece.begins.back(),
                          .out = piece.out,
                          .begin = piece.begins[self],
                          .end = piece.begins[self + 1]});
    }
    return average_of_integers(backend, std::move(averaged), reduction);
  }
  return backend.start(Reducescatter{pieces, reduction});
}

Result<void> combine(const Task& task, const Backend& backend, const FastRule::Shares& shares) {
  const Members& members = backend.members();
  const Signature& signature = *task.signature;
  auto memory = memory_of(task, members);
  if (!memory) return std::move(memory).error();
  const std::int64_t rows = signature.shape.front();
  const auto first = static_cast<std::size_t>(first_row(rows, members.size(), members.self));
  const auto end = static_cast<std::size_t>(first_row(rows, members.size(), members.self + 1));
  const std::size_t row = row_bytes(signature);
  std::vector<const std::byte*> sources(shares.data.begin(), shares.data.end());
  for (const std::byte*& source : sources) source += first * row;
  combine_shares(*memory, sources, (end - first) * row / size_of(signature.dtype), signature,
                 backend);
  return {};
}

}  // namespace

const Collective kReducescatter{.kind = Kind::Reducescatter,
                                .rules = {.name = "REDUCESCATTER",
                                          .prefix = "reducescatter",
                                          .transfer = "GLOO_REDUCESCATTER",
                                          .fusable = true,
                                          .disagreement = disagreement,
                                          .describe = describe_reduction},
                                .check = check,
                                .start = start,
                                .fast = FastRule{.combine = combine}};

}  // namespace farandole

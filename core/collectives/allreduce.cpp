/// Allreduce: every rank gets the reduction of all ranks' tensors.
/// Source: MPI 4.1, section 6.9.6.

#include <vector>

#include "collectives/collective.h"
#include "collectives/integer_average.h"

namespace farandole {

namespace {

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (auto text = factor_disagreement(one, other); !text.empty()) return text;
  if (auto text = op_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

Result<void> check(const Task&, const Members&) { return {}; }

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  const Signature& first = *tasks.front().signature;
  const Reduction reduction = reduction_of(first, backend.members().size());
  if (averages_integers(first, backend.members().size())) {
    std::vector<AveragedPiece> averaged;
    averaged.reserve(tasks.size());
    for (const Task& task : tasks) {
      const auto count = static_cast<std::size_t>(element_count(task.signature->shape));
      averaged.push_back({.in = task.in, .count = count, .out = task.out, .end = count});
    }
    return average_of_integers(backend, std::move(averaged), reduction);
  }
  std::vector<Piece> pieces;
  pieces.reserve(tasks.size());
  for (const Task& task : tasks) {
    pieces.push_back({.in = task.in,
                      .out = task.out,
                      .count = static_cast<std::size_t>(element_count(task.signature->shape))});
  }
  return backend.start(Allreduce{pieces, reduction});
}

Result<void> combine(const Task& task, const Backend& backend, const FastRule::Shares& shares) {
  combine_shares(task.out, shares.data,
                 static_cast<std::size_t>(element_count(task.signature->shape)), *task.signature,
                 backend);
  return {};
}

}  // namespace

const Collective kAllreduce{.kind = Kind::Allreduce,
                            .rules = {.name = "ALLREDUCE",
                                      .prefix = "allreduce",
                                      .transfer = "GLOO_ALLREDUCE",
                                      .fusable = true,
                                      .runs_with_joined = true,
                                      .in_place = true,
                                      .disagreement = disagreement,
                                      .describe = describe_reduction},
                            .check = check,
                            .start = start,
                            .fast = FastRule{.combine = combine}};

}  // namespace farandole

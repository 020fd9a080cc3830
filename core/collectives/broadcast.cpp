/// Broadcast: every rank gets the root's tensor.
/// Source: MPI 4.1, section 6.4.

#include <algorithm>

#include "collectives/collective.h"

namespace rueda {

namespace {

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (one.root != other.root) {
    return "Mismatched BROADCAST root ranks: One rank specified root rank " +
           std::to_string(one.root) + ", but another rank specified root rank " +
           std::to_string(other.root) + ".";
  }
  return device_disagreement(one, other);
}

std::string describe(const Signature& signature) {
  return describe_tensor(signature, {}, " from root " + std::to_string(signature.root));
}

Result<void> check(const Task& task, const Members& members) {
  const Rank root = task.signature->root;
  if (std::find(members.ranks.begin(), members.ranks.end(), root) == members.ranks.end()) {
    return Error{.code = Code::InvalidArgument,
                 .message = "broadcast received invalid root rank " + std::to_string(root) +
                            " for provided process set"};
  }
  return {};
}

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  const Task& task = tasks.front();  // not fusable: always one
  const std::vector<Rank>& ranks = backend.members().ranks;
  const auto root = std::find(ranks.begin(), ranks.end(), task.signature->root) - ranks.begin();
  const std::size_t bytes = task.signature->bytes();
  return backend.broadcast({task.in, bytes}, {task.out, bytes}, static_cast<int>(root));
}

}  // namespace

const Collective kBroadcast{.kind = Kind::Broadcast,
                            .rules = {.name = "BROADCAST",
                                      .prefix = "broadcast",
                                      .transfer = "GLOO_BCAST",
                                      .in_place = true,
                                      .rooted = true,
                                      .disagreement = disagreement,
                                      .describe = describe},
                            .check = check,
                            .start = start};

}  // namespace rueda

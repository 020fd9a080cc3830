/// Broadcast: every rank gets the root's tensor.
/// Source: MPI 4.1, section 6.4.

#include <cstring>

#include "collectives/collective.h"

namespace farandole {

namespace {

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (auto text = root_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

std::string describe(const Signature& signature) {
  return describe_tensor(signature, {}, " from root " + std::to_string(signature.root));
}

Result<void> check(const Task& task, const Members& members) {
  return check_root(*task.signature, members);
}

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  const Task& task = tasks.front();  // not fusable: always one task
  const std::size_t bytes = task.signature->bytes();
  return backend.start(
      Broadcast{{task.in, bytes}, {task.out, bytes}, root_of(*task.signature, backend.members())});
}

std::size_t bytes(const Signature& signature, const std::int64_t*, int member,
                  const Members& members) {
  const bool root = members.ranks[static_cast<std::size_t>(member)] == signature.root;
  return root ? signature.bytes() : 0;
}

Result<void> combine(const Task& task, const Backend& backend, const FastRule::Shares& shares) {
  const int root = root_of(*task.signature, backend.members());
  if (backend.members().self != root || task.out != task.in) {
    std::memcpy(task.out, shares.data[static_cast<std::size_t>(root)], task.signature->bytes());
  }
  return {};
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
                            .start = start,
                            .fast = FastRule{.combine = combine, .bytes = bytes}};

}  // namespace farandole

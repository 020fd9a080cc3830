/// Adding and removing a process set: operations of the world, on which all ranks agree as on any
/// other. The engine changes the table of sets; the operation itself is a barrier of the set's
/// members, before its first and after its last operation.
/// Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.

#include <algorithm>

#include "collectives/collective.h"
#include "text.h"

namespace farandole {

namespace {

std::string list(const std::vector<Rank>& ranks) {
  std::string text = "[";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text + "]";
}

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (one.ranks != other.ranks) {
    return "Mismatched process sets: One rank adds the set of ranks " + list(one.ranks) +
           ", but another rank adds that of ranks " + list(other.ranks) + ".";
  }
  if (one.root != other.root) {
    return "Mismatched process sets: One rank removes process set " + std::to_string(one.root) +
           ", but another rank removes process set " + std::to_string(other.root) + ".";
  }
  return {};
}

/// A larger number can only come from a malformed message.
constexpr Rank kMaxQuotedRank = 1 << 20;

std::string describe_addition(const Signature& signature) {
  std::vector<Rank> ranks;
  for (const Rank rank : signature.ranks) {
    if (rank >= 0 && rank < kMaxQuotedRank) ranks.push_back(rank);
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return "ADD_PROCESS_SET of " + list_ranks(ranks);
}

std::string describe_removal(const Signature& signature) {
  return "REMOVE_PROCESS_SET " + std::to_string(signature.root);
}

Result<void> check(const Task& task, const Members&) {
  const Signature& signature = *task.signature;
  if (signature.kind == Kind::RemoveProcessSet && signature.root == 0) {
    return Error{.code = Code::InvalidArgument,
                 .message = "Process set 0 is the world: it cannot be removed"};
  }
  return {};
}

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task>) { return backend.meet(); }

}  // namespace

const Collective kAddProcessSet{.kind = Kind::AddProcessSet,
                                .rules = {.name = "ADD_PROCESS_SET",
                                          .prefix = "process_set",
                                          .disagreement = disagreement,
                                          .describe = describe_addition,
                                          .matched_by_count = true,
                                          .without_tensors = true},
                                .check = check,
                                .start = start};

const Collective kRemoveProcessSet{.kind = Kind::RemoveProcessSet,
                                   .rules = {.name = "REMOVE_PROCESS_SET",
                                             .prefix = "process_set",
                                             .disagreement = disagreement,
                                             .describe = describe_removal,
                                             .matched_by_count = true,
                                             .without_tensors = true},
                                   .check = check,
                                   .start = start};

}  // namespace farandole

#include "backends/shm/shm.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "backends/buffers/spans.h"
#include "backends/operation.h"
#include "backends/shm/arena.h"
#include "backends/shm/collectives.h"
#include "backends/shm/cross_memory.h"

namespace farandole {
namespace {

std::vector<int> local_indices(const std::vector<ShmMember>& members) {
  std::vector<int> indices;
  indices.reserve(members.size());
  for (const ShmMember& member : members) indices.push_back(member.local_index);
  return indices;
}

/// Nothing to move and nobody to wait for.
class Nothing final : public Operation {
 public:
  Result<Step> step() override { return Step::Done; }
};

}  // namespace

ShmBackend::ShmBackend(Members members, std::vector<ShmMember> by_set_rank,
                       std::shared_ptr<ShmPipes> pipes, ShmChannelUse use, ShmTuning tuning)
    : PipesBackend(std::move(members), std::move(pipes), local_indices(by_set_rank)),
      arena_(std::make_unique<ShmArena>(this->members(), by_set_rank, use, tuning)),
      cross_memory_(std::make_unique<CrossMemory>(*arena_, by_set_rank)) {}

ShmBackend::~ShmBackend() = default;

bool ShmBackend::small(Kind kind, std::size_t bytes) const noexcept {
  if (kind == Kind::Barrier) return true;
  if (kind == Kind::Broadcast) return false;
  if (kind == Kind::Alltoall) bytes += AlltoallStream::table_bytes(members().size());
  return bytes <= arena_->tuning().small_bytes;
}

bool ShmBackend::cross_memory(std::size_t longest, std::size_t result) const noexcept {
  return members().size() > 1 && cross_memory_->possible() &&
         longest >= arena_->tuning().cross_memory_bytes &&
         result <= arena_->tuning().cross_memory_most_bytes;
}

std::string_view ShmBackend::path(Kind kind, std::size_t bytes) const noexcept {
  return small(kind, bytes) ? "shm.small" : "shm.large";
}

void ShmBackend::begin(OperationTag operation) {
  PipesBackend::begin(operation);
  arena_->begin(operation);
}

template <>
std::unique_ptr<Operation> ShmBackend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.count * size_of(reduction.dtype);
  if (bytes == 0) return std::make_unique<Nothing>();
  if (small(Kind::Allreduce, bytes)) return small_allreduce(*arena_, pieces, reduction);
  return large_allreduce(*arena_, pieces, reduction);
}

template <>
std::unique_ptr<Operation> ShmBackend::perform(GatherPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  std::size_t longest = 0;
  std::size_t result = 0;
  for (const auto& spans : plan.out) {
    const std::size_t bytes = total_bytes(spans);
    longest = std::max(longest, bytes);
    result += bytes;
  }
  if (longest == 0) return std::make_unique<Nothing>();
  if (small(Kind::Allgather, longest)) return small_allgather(*arena_, std::move(plan));
  if (cross_memory(longest, result))
    return cross_memory_allgather(*arena_, *cross_memory_, std::move(plan), result);
  return stream_allgather(*arena_, std::move(plan));
}

template <>
std::unique_ptr<Operation> ShmBackend::perform(Reducescatter verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  std::size_t bytes = 0;
  for (const ScatterPiece& piece : pieces) bytes += piece.begins.back() * size_of(reduction.dtype);
  if (bytes == 0) return std::make_unique<Nothing>();
  if (small(Kind::Reducescatter, bytes)) return small_reducescatter(*arena_, pieces, reduction);
  return large_reducescatter(*arena_, pieces, reduction);
}

template <>
std::unique_ptr<Operation> ShmBackend::perform(AlltoallPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  if (plan.longest == 0) return std::make_unique<Nothing>();
  if (small(Kind::Alltoall, plan.longest)) return small_alltoall(*arena_, std::move(plan));
  if (cross_memory(plan.longest, plan.longest)) {
    return cross_memory_alltoall(*arena_, *cross_memory_, std::move(plan));
  }
  return stream_alltoall(*arena_, std::move(plan));
}

template <>
std::unique_ptr<Operation> ShmBackend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  if (root < 0 || root >= members().size() || (root == members().self && in.size() != out.size())) {
    return failed_operation(Code::Internal, "A broadcast that contradicts itself");
  }
  if (out.size() <= arena_->tuning().cross_memory_broadcast_bytes &&
      cross_memory(out.size(), out.size())) {
    return cross_memory_broadcast(*arena_, *cross_memory_, in, out, root);
  }
  return stream_broadcast(*arena_, in, out, root);
}

template <>
std::unique_ptr<Operation> ShmBackend::perform(Barrier /*verb*/) {
  return shm_barrier(*arena_);
}

std::unique_ptr<Operation> ShmBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

Result<std::unique_ptr<Backend>> open_shm(Members members, int channel,
                                          const Resources& resources) {
  if (channel < 0 || channel >= kShmChannels) {
    return Error{.code = Code::Unsupported,
                 .message = "There is no shared-memory channel " + std::to_string(channel)};
  }
  const ShmHost& host = resources.host;
  const ShmExtent extent = channel_extent(static_cast<int>(host.ranks.size()), channel);
  if (auto reserved = host.own->reserve(extent.offset, extent.bytes); !reserved) {
    return Error::wrap(std::move(reserved).error(), "Opening a process set");
  }
  std::vector<ShmMember> by_set_rank;
  for (const int index : local_indices(host, members.ranks)) {
    by_set_rank.push_back(host.members[static_cast<std::size_t>(index)]);
  }
  return std::unique_ptr<Backend>(
      std::make_unique<ShmBackend>(std::move(members), std::move(by_set_rank), resources.pipes,
                                   ShmChannelUse{.channel = channel, .fresh = true}));
}

}  // namespace farandole

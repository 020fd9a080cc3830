#include "backends/shm.h"

#include <algorithm>
#include <utility>

#include "backends/failed_operation.h"
#include "backends/shm_arena.h"
#include "backends/shm_large.h"
#include "backends/shm_small.h"
#include "backends/shm_stream.h"

namespace rueda {
namespace {

template <typename Byte>
std::size_t total(const std::vector<std::span<Byte>>& spans) noexcept {
  std::size_t bytes = 0;
  for (const auto& span : spans) bytes += span.size();
  return bytes;
}

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
      arena_(std::make_unique<ShmArena>(this->members(), by_set_rank, use, tuning)) {}

ShmBackend::~ShmBackend() = default;

std::string_view ShmBackend::path(Kind, std::size_t bytes) const noexcept {
  return bytes <= arena_->tuning().small_bytes ? "shm.small" : "shm.large";
}

std::unique_ptr<Operation> ShmBackend::allreduce(std::span<const Piece> pieces,
                                                 const Reduction& reduction) {
  if (reduction.op == ReduceOp::Adasum) {
    return failed_operation(Code::Unsupported, "Adasum is not a reduction of single elements.");
  }
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.count * size_of(reduction.dtype);
  if (bytes == 0) return std::make_unique<Nothing>();
  if (bytes <= arena_->tuning().small_bytes) return small_allreduce(*arena_, pieces, reduction);
  return large_allreduce(*arena_, pieces, reduction);
}

std::unique_ptr<Operation> ShmBackend::allgather(GatherPlan plan) {
  std::size_t longest = 0;
  for (const auto& spans : plan.out) longest = std::max(longest, total(spans));
  const auto self = static_cast<std::size_t>(members().self);
  if (plan.out.size() != members().ranks.size() || total(plan.out[self]) != total(plan.in)) {
    return failed_operation(Code::Internal, "A gather plan that contradicts itself");
  }
  if (longest == 0) return std::make_unique<Nothing>();
  if (longest <= arena_->tuning().small_bytes) return small_allgather(*arena_, std::move(plan));
  return stream_allgather(*arena_, std::move(plan));
}

std::unique_ptr<Operation> ShmBackend::broadcast(std::span<const std::byte> in,
                                                 std::span<std::byte> out, int root) {
  if (root < 0 || root >= members().size() || (root == members().self && in.size() != out.size())) {
    return failed_operation(Code::Internal, "A broadcast that contradicts itself");
  }
  return stream_broadcast(*arena_, in, out, root);
}

std::unique_ptr<Operation> ShmBackend::barrier() { return shm_barrier(*arena_); }

}  // namespace rueda

/// Adasum: an allreduce that adds what is orthogonal and averages what is parallel.
/// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
///
/// Members at distances 1, 2, 4 … exchange their whole vectors, and both combine them; `a` is the
/// vector of the lower member. So after each round all members of a subtree have the same bits. The
/// combination of two tensors depends on all their elements, but never on the rest of the batch.

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "backends/algorithms/transfers.h"
#include "backends/operation.h"
#include "collectives/collective.h"
#include "kernels/adasum.h"

namespace farandole {

namespace {

/// Elements that one step() computes: a few 100 µs.
constexpr std::size_t kChunk = 64 * kAdasumBlock;

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (auto text = factor_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

Result<void> check(const Task& task, const Members& members) {
  switch (task.signature->dtype) {
    case DType::Float16:
    case DType::BFloat16:
    case DType::Float32:
    case DType::Float64:
      break;
    default:
      return Error{.code = Code::InvalidArgument,
                   .message = "Adasum needs a floating-point tensor, not one of " +
                              std::string(name_of(task.signature->dtype))};
  }
  if (!std::has_single_bit(static_cast<unsigned>(members.size()))) {
    return Error{.code = Code::Unsupported,
                 .message =
                     "Adasum combines ranks pairwise, so it needs a power of two of them; "
                     "the process set has " +
                     std::to_string(members.size())};
  }
  return {};
}

/// Steps: scale all inputs into the outputs; for each distance exchange the outputs and combine
/// them, tensor after tensor; scale the outputs.
class Adasum final : public Operation {
 public:
  Adasum(Backend& backend, std::span<const Task> tasks)
      : members_(backend.members()),
        dtype_(tasks.front().signature->dtype),
        element_(size_of(dtype_)),
        prescale_(tasks.front().signature->prescale),
        postscale_(tasks.front().signature->postscale),
        pending_(tasks.size(), 0),
        transfers_(backend) {
    std::size_t bytes = 0;
    for (const Task& task : tasks) bytes += task.signature->bytes();
    if (members_.size() > 1) theirs_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::byte* theirs = theirs_.get();
    for (const Task& task : tasks) {
      const std::size_t count = static_cast<std::size_t>(element_count(task.signature->shape));
      tensors_.push_back({.in = task.in, .own = task.out, .theirs = theirs, .count = count});
      if (theirs != nullptr) theirs += count * element_;
    }
  }

  Result<Step> step() override {
    auto moved = transfers_.step();
    if (!moved) return std::move(moved).error();
    bool worked = false;
    for (std::size_t budget = kChunk; budget > 0 && phase_ != Phase::Done; worked = true) {
      if (tensor_ == tensors_.size()) {
        enter_next_phase();
        continue;
      }
      if (phase_ == Phase::Measure && pending_[tensor_] != 0) break;
      const std::size_t now = std::min(budget, tensors_[tensor_].count - done_);
      budget -= (now + kAdasumBlock - 1) / kAdasumBlock * kAdasumBlock;  // whole blocks only
      work(tensors_[tensor_], now);
    }
    if (phase_ == Phase::Done) return Step::Done;
    return *moved || worked ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  struct Tensor {
    const std::byte* in;
    std::byte* own;
    std::byte* theirs;
    std::size_t count;
  };
  /// Measure and Combine alternate, tensor by tensor.
  enum class Phase : std::uint8_t { Prescale, Measure, Combine, Postscale, Done };

  /// After the last tensor of a phase.
  void enter_next_phase() {
    tensor_ = 0;
    if (phase_ == Phase::Postscale) {
      phase_ = Phase::Done;
    } else if (distance_ == members_.size()) {
      phase_ = Phase::Postscale;
    } else {
      const int partner = members_.self ^ distance_;
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const Tensor& tensor = tensors_[t];
        const std::size_t bytes = tensor.count * element_;
        transfers_.send(partner, {tensor.own, bytes}, pending_[t]);
        transfers_.recv(partner, {tensor.theirs, bytes}, pending_[t]);
      }
      own_is_lower_ = members_.self < partner;
      distance_ *= 2;
      phase_ = Phase::Measure;
    }
  }

  /// `now` elements of the tensor from done_ on.
  void work(const Tensor& tensor, std::size_t now) {
    std::byte* own = tensor.own + done_ * element_;
    const std::byte* theirs = tensor.theirs + done_ * element_;
    const std::byte* a = own_is_lower_ ? own : theirs;
    const std::byte* b = own_is_lower_ ? theirs : own;
    switch (phase_) {
      case Phase::Prescale:
        scale_copy(own, tensor.in + done_ * element_, now, dtype_, prescale_);
        break;
      case Phase::Measure:
        for (std::size_t at = 0; at < now; at += kAdasumBlock) {
          const std::size_t count = std::min(kAdasumBlock, now - at);
          total_.add(adasum_products(a + at * element_, b + at * element_, count, dtype_, scales_));
        }
        break;
      case Phase::Combine:
        adasum_combine(own, a, b, now, dtype_, weights_);
        break;
      case Phase::Postscale:
        scale_copy(own, own, now, dtype_, postscale_);
        break;
      case Phase::Done:
        break;
    }
    done_ += now;
    if (done_ == tensor.count) finish_tensor();
  }

  void finish_tensor() {
    done_ = 0;
    if (phase_ == Phase::Measure) {
      const AdasumProducts products = total_.value();
      total_.clear();
      const AdasumScales scales = adasum_scales(products, dtype_);
      if (scales == scales_ || scales_ != AdasumScales{}) {
        weights_ = adasum_weights(products, scales_);
        phase_ = Phase::Combine;
      } else {
        scales_ = scales;  // once more
      }
      return;
    }
    if (phase_ == Phase::Combine) {
      scales_ = {};
      phase_ = Phase::Measure;
    }
    ++tensor_;
  }

  const Members& members_;
  const DType dtype_;
  const std::size_t element_;  // bytes
  const double prescale_;
  const double postscale_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<std::byte[]> theirs_;  // the partner's vectors: as many bytes as the batch has
  Phase phase_ = Phase::Prescale;
  int distance_ = 1;  // of the next partner
  bool own_is_lower_ = true;
  std::size_t tensor_ = 0;  // of the phase
  std::size_t done_ = 0;    // elements of that tensor
  AdasumTotal total_;       // of the tensor that is being measured
  AdasumScales scales_;
  AdasumWeights weights_;
  std::vector<int> pending_;  // transfers by tensor
  Transfers transfers_;       // last: its transfers end before the memory they use
};

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  return std::make_unique<Adasum>(backend, tasks);
}

}  // namespace

const Collective kAdasum{.kind = Kind::Adasum,
                         .rules = {.name = "ADASUM",
                                   .prefix = "allreduce",
                                   .transfer = "MPI_ADASUM_ALLREDUCE",
                                   .fusable = true,
                                   .runs_with_joined = true,
                                   .in_place = true,
                                   .disagreement = disagreement,
                                   .describe = describe_tensor},
                         .check = check,
                         .start = start,
                         .host_only = true};

}  // namespace farandole

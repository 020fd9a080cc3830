/// Allgather: every rank gets all ranks' tensors, one after another along the first dimension.
/// The number of rows may differ between ranks, so the members first exchange it.
/// Source: MPI 4.1, section 6.7 (MPI_Allgatherv).

#include <vector>

#include "collectives/collective.h"

namespace rueda {

namespace {

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = row_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

Result<void> check(const Task& task, const Members&) {
  if (task.signature->shape.empty()) {
    return Error{.code = Code::Mismatch, .message = "Rank tried to ALLGATHER a rank-zero tensor."};
  }
  return {};
}

class Allgather final : public Operation {
 public:
  Allgather(Backend& backend, std::span<const Task> tasks)
      : backend_(backend),
        tasks_(tasks),
        size_(static_cast<std::size_t>(backend.members().size())) {
    own_rows_.reserve(tasks.size());
    for (const Task& task : tasks) own_rows_.push_back(task.signature->shape.front());
    all_rows_.resize(tasks.size() * size_);
    GatherPlan plan;
    plan.in = {std::as_bytes(std::span(own_rows_))};
    plan.out.resize(size_);
    for (std::size_t m = 0; m < size_; ++m) {
      plan.out[m] = {
          std::as_writable_bytes(std::span(all_rows_).subspan(m * tasks.size(), tasks.size()))};
    }
    exchange_ = backend.allgather(std::move(plan));
  }

  Result<Step> step() override {
    auto step = exchange_->step();
    if (!step || *step != Step::Done || moving_) return step;
    if (auto started = start_moving(); !started) return std::move(started).error();
    moving_ = true;
    return Step::Advanced;
  }

  std::vector<Rank> waiting_for() const override { return exchange_->waiting_for(); }

 private:
  Result<void> start_moving() {
    GatherPlan plan;
    plan.out.resize(size_);
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const Task& task = tasks_[t];
      Shape shape = task.signature->shape;
      shape.front() = 1;
      const std::size_t row_bytes =
          static_cast<std::size_t>(element_count(shape)) * size_of(task.signature->dtype);
      shape.front() = 0;
      for (std::size_t m = 0; m < size_; ++m) shape.front() += rows(m, t);
      std::byte* out = task.out;
      if (out == nullptr) {
        auto memory = task.allocator->allocate(shape, task.signature->dtype);
        if (!memory) return std::move(memory).error();
        out = *memory;
      }
      plan.in.push_back({task.in, static_cast<std::size_t>(own_rows_[t]) * row_bytes});
      for (std::size_t m = 0; m < size_; ++m) {
        const std::size_t bytes = static_cast<std::size_t>(rows(m, t)) * row_bytes;
        plan.out[m].push_back({out, bytes});
        out += bytes;
      }
    }
    exchange_ = backend_.allgather(std::move(plan));
    return {};
  }

  [[nodiscard]] std::int64_t rows(std::size_t member, std::size_t task) const {
    return all_rows_[member * tasks_.size() + task];
  }

  Backend& backend_;
  std::span<const Task> tasks_;
  std::size_t size_;
  std::vector<std::int64_t> own_rows_;  // by task
  std::vector<std::int64_t> all_rows_;  // by member, then task
  std::unique_ptr<Operation> exchange_;
  bool moving_ = false;  // false: the rows are being exchanged; true: the data
};

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  return std::make_unique<Allgather>(backend, tasks);
}

}  // namespace

const Collective kAllgather{.kind = Kind::Allgather,
                            .rules = {.name = "ALLGATHER",
                                      .prefix = "allgather",
                                      .fusable = true,
                                      .rows_may_differ = true,
                                      .disagreement = disagreement},
                            .check = check,
                            .start = start};

}  // namespace rueda

/// Alltoall: every rank gives each rank some of its rows, and gets the rows meant for it, in the
/// order of the ranks they come from. How many rows go where is each rank's own affair, so the
/// members first exchange the numbers.
/// Source: MPI 4.1, section 6.8 (MPI_Alltoallv).

#include <limits>
#include <vector>

#include "collectives/collective.h"

namespace rueda {

namespace {

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = row_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

Error refusal(std::string message) {
  return {.code = Code::InvalidArgument, .message = std::move(message)};
}

Result<void> check(const Task& task, const Members& members) {
  if (task.signature->shape.empty()) {
    return refusal("alltoall needs a tensor with at least one dimension: its rows are sent");
  }
  const std::int64_t rows = task.signature->shape.front();
  const auto size = static_cast<std::int64_t>(members.size());
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // see Task::received
  if (task.splits.empty()) {
    if (rows % size != 0) {
      return refusal("tensor's first dimension, " + std::to_string(rows) +
                     ", is not a multiple of the " + std::to_string(size) +
                     " members of the process set; give splits to send different numbers of rows");
    }
    if (rows / size > kMost) return refusal("alltoall of more than 2^31 - 1 rows for one rank");
    return {};
  }
  if (static_cast<std::int64_t>(task.splits.size()) != size) {
    return refusal("splits has " + std::to_string(task.splits.size()) + " entries, but " +
                   std::to_string(size) + " are needed: one for every member of the process set");
  }
  std::int64_t rest = rows;
  for (const std::int64_t split : task.splits) {
    if (split < 0 || split > kMost) {
      return refusal("splits has the entry " + std::to_string(split) +
                     ", but numbers of rows are from 0 to 2^31 - 1");
    }
    if (split > rest) {
      return refusal("the sum of splits is larger than tensor's first dimension, " +
                     std::to_string(rows));
    }
    rest -= split;
  }
  return {};
}

/// Adds and multiplies, and notices if that leaves the range.
class Bytes {
 public:
  explicit Bytes(std::size_t row_bytes) : row_bytes_(row_bytes) {}
  std::size_t of(std::int64_t rows) noexcept {
    std::size_t bytes = 0;
    if (rows < 0 || __builtin_mul_overflow(static_cast<std::size_t>(rows), row_bytes_, &bytes) ||
        bytes > kMost - used_) {
      fits_ = false;
      return 0;
    }
    used_ += bytes;
    return bytes;
  }
  [[nodiscard]] std::size_t sum() const noexcept { return used_; }
  [[nodiscard]] bool fits() const noexcept { return fits_; }

 private:
  static constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  std::size_t row_bytes_;
  std::size_t used_ = 0;
  bool fits_ = true;
};

class Alltoall final : public Operation {
 public:
  Alltoall(Backend& backend, const Task& task)
      : backend_(backend), task_(task), size_(static_cast<std::size_t>(backend.members().size())) {
    own_.assign(task.splits.begin(), task.splits.end());
    if (own_.empty()) {
      own_.assign(size_, task.signature->shape.front() / static_cast<std::int64_t>(size_));
    }
    all_.resize(size_ * size_);
    GatherPlan plan;
    plan.in = {std::as_bytes(std::span(own_))};
    for (std::size_t m = 0; m < size_; ++m) {
      plan.out.push_back({std::as_writable_bytes(std::span(all_).subspan(m * size_, size_))});
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
    const auto self = static_cast<std::size_t>(backend_.members().self);
    Shape shape = task_.signature->shape;
    shape.front() = 1;
    const std::size_t row_bytes =
        static_cast<std::size_t>(element_count(shape)) * size_of(task_.signature->dtype);

    // Everybody looks at all of it, so that all refuse together.
    AlltoallPlan plan;
    bool fits = true;
    for (std::size_t m = 0; m < size_; ++m) {
      Bytes sent(row_bytes);
      Bytes come(row_bytes);
      for (std::size_t other = 0; other < size_; ++other) {
        sent.of(rows(m, other));
        come.of(rows(other, m));
      }
      fits = fits && sent.fits() && come.fits();
      plan.longest = std::max(plan.longest, sent.sum());
    }
    if (!fits) {
      return Error{.code = Code::Internal,
                   .message = "alltoall of numbers of rows that no memory can hold"};
    }

    shape.front() = 0;
    for (std::size_t m = 0; m < size_; ++m) shape.front() += rows(m, self);
    std::byte* out = task_.out;
    if (out == nullptr) {
      auto memory = task_.allocator->allocate(shape, task_.signature->dtype);
      if (!memory) return std::move(memory).error();
      out = *memory;
    }
    const std::byte* in = task_.in;
    for (std::size_t m = 0; m < size_; ++m) {
      const std::size_t going = static_cast<std::size_t>(rows(self, m)) * row_bytes;
      const std::size_t coming = static_cast<std::size_t>(rows(m, self)) * row_bytes;
      plan.in.emplace_back(in, going);
      plan.out.emplace_back(out, coming);
      in += going;
      out += coming;
      if (task_.received != nullptr) {
        task_.received[m] = static_cast<std::int32_t>(rows(m, self));
      }
    }
    exchange_ = backend_.alltoall(std::move(plan));
    return {};
  }

  [[nodiscard]] std::int64_t rows(std::size_t from, std::size_t to) const {
    return all_[from * size_ + to];
  }

  Backend& backend_;
  const Task& task_;
  std::size_t size_;
  std::vector<std::int64_t> own_;  // rows by member
  std::vector<std::int64_t> all_;  // rows by giving member, then receiving
  std::unique_ptr<Operation> exchange_;
  bool moving_ = false;  // false: the numbers are being exchanged; true: the rows
};

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  return std::make_unique<Alltoall>(backend, tasks.front());  // not fusable: always one
}

}  // namespace

const Collective kAlltoall{.kind = Kind::Alltoall,
                           .rules = {.name = "ALLTOALL",
                                     .prefix = "alltoall",
                                     .rows_may_differ = true,
                                     .disagreement = disagreement},
                           .check = check,
                           .start = start};

}  // namespace rueda

/// Alltoall: every rank sends some of its rows to each rank, and gets the rows that are meant for
/// it, in the order of their senders. Each rank decides alone how many rows go where, so the
/// members first exchange these numbers.
/// Source: MPI 4.1, section 6.8 (MPI_Alltoallv).

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "collectives/collective.h"
#include "collectives/counted.h"

namespace farandole {

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

/// Adds and multiplies; reports a result that does not fit.
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

/// Rows for each member: the given numbers, or else equally many.
std::vector<std::int64_t> splits_of(const Task& task, std::int64_t members) {
  if (!task.splits.empty()) return {task.splits.begin(), task.splits.end()};
  return std::vector<std::int64_t>(static_cast<std::size_t>(members),
                                   task.signature->shape.front() / members);
}

/// The numbers are rows by receiving member.
class Alltoall final : public Counted {
 public:
  Alltoall(Backend& backend, const Task& task)
      : Counted(backend, splits_of(task, backend.members().size()), {&task, 1}), task_(task) {}

 private:
  std::size_t bytes_for(std::size_t member) const override {
    Bytes sent(row_bytes(*task_.signature));
    Bytes come(row_bytes(*task_.signature));
    for (std::size_t other = 0; other < size(); ++other) {
      sent.of(number(member, other));
      come.of(number(other, member));
    }
    return sent.fits() && come.fits() ? come.sum() : SIZE_MAX;
  }

  Result<void> prepare() override {
    const auto self = static_cast<std::size_t>(backend().members().self);
    Shape shape = task_.signature->shape;
    const std::size_t row = row_bytes(*task_.signature);

    // Every member checks the numbers of all members, so that all refuse together.
    bool fits = true;
    for (std::size_t m = 0; m < size(); ++m) {
      Bytes sent(row);
      for (std::size_t other = 0; other < size(); ++other) sent.of(number(m, other));
      fits = fits && bytes_for(m) != SIZE_MAX;
      plan_.longest = std::max(plan_.longest, sent.sum());
    }
    if (!fits) {
      return Error{.code = Code::Internal,
                   .message = "alltoall of numbers of rows that no memory can hold"};
    }

    shape.front() = 0;
    for (std::size_t m = 0; m < size(); ++m) shape.front() += number(m, self);
    auto memory = output_of(task_, shape);
    if (!memory) return std::move(memory).error();
    std::byte* out = *memory;
    const std::byte* in = task_.in;
    for (std::size_t m = 0; m < size(); ++m) {
      const std::size_t going = static_cast<std::size_t>(number(self, m)) * row;
      const std::size_t coming = static_cast<std::size_t>(number(m, self)) * row;
      if (!addresses(task_).empty()) {
        std::int64_t before = 0;  // rows that it sends to members before this one
        for (std::size_t other = 0; other < self; ++other) before += number(m, other);
        plan_.theirs.push_back(addresses(task_)[m] + static_cast<std::uint64_t>(before) * row);
      }
      plan_.in.emplace_back(in, going);
      plan_.out.emplace_back(out, coming);
      in += going;
      out += coming;
      if (task_.received != nullptr) {
        task_.received[m] = static_cast<std::int32_t>(number(m, self));
      }
    }
    return {};
  }

  std::unique_ptr<Operation> move() override { return backend().start(std::move(plan_)); }

  AlltoallPlan plan_;

  const Task& task_;
};

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  return std::make_unique<Alltoall>(backend, tasks.front());  // not fusable: always one task
}

std::size_t numbers(const Members& members) { return static_cast<std::size_t>(members.size()); }

void tell(const Task& task, const Members& members, std::int64_t* numbers) {
  if (task.splits.empty()) {
    std::fill_n(numbers, members.size(), task.signature->shape.front() / members.size());
  } else {
    std::ranges::copy(task.splits, numbers);
  }
}

std::size_t bytes(const Signature& signature, const std::int64_t* numbers, int,
                  const Members& members) {
  Bytes sent(row_bytes(signature));
  for (int m = 0; m < members.size(); ++m) sent.of(numbers[m]);
  return sent.fits() ? sent.sum() : SIZE_MAX;
}

Result<void> combine(const Task& task, const Backend& backend, const FastRule::Shares& shares) {
  const Signature& signature = *task.signature;
  const int self = backend.members().self;
  Shape shape = signature.shape;
  shape.front() = 0;
  for (const std::int64_t* const told : shares.numbers) shape.front() += told[self];
  auto memory = output_of(task, shape);
  if (!memory) return std::move(memory).error();
  std::byte* out = *memory;
  const std::size_t row = row_bytes(signature);
  for (std::size_t m = 0; m < shares.numbers.size(); ++m) {
    const std::int64_t* const told = shares.numbers[m];
    const auto before =
        static_cast<std::size_t>(std::accumulate(told, told + self, std::int64_t{0}));
    const std::size_t length = static_cast<std::size_t>(told[self]) * row;
    if (length != 0) std::memcpy(out, shares.data[m] + before * row, length);
    out += length;
    if (task.received != nullptr) task.received[m] = static_cast<std::int32_t>(told[self]);
  }
  return {};
}

}  // namespace

const Collective kAlltoall{
    .kind = Kind::Alltoall,
    .rules = {.name = "ALLTOALL",
              .prefix = "alltoall",
              .transfer = "MPI_ALLTOALL",
              .rows_may_differ = true,
              .disagreement = disagreement,
              .describe = describe_tensor},
    .check = check,
    .start = start,
    .fast = FastRule{.combine = combine, .bytes = bytes, .numbers = numbers, .tell = tell}};

}  // namespace farandole

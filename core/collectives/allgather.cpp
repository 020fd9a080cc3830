/// Allgather: every rank gets all ranks' tensors, one after another along the first dimension.
/// The number of rows may differ between ranks, so the members first exchange it.
/// Source: MPI 4.1, section 6.7 (MPI_Allgatherv).

#include <cstring>
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

Result<void> check(const Task& task, const Members&) {
  if (task.signature->shape.empty()) {
    return Error{.code = Code::Mismatch, .message = "Rank tried to ALLGATHER a rank-zero tensor."};
  }
  return {};
}

/// Adds rows. False: no tensor can have so many.
bool add_rows(std::int64_t& sum, std::int64_t rows) noexcept {
  return rows >= 0 && !__builtin_add_overflow(sum, rows, &sum);
}

/// The same on all members, as all of them know all numbers.
Error too_many_rows() {
  return {.code = Code::InvalidArgument,
          .message = "the ranks' rows together are more than any tensor can have"};
}

std::vector<std::int64_t> rows_of(std::span<const Task> tasks) {
  std::vector<std::int64_t> rows;
  rows.reserve(tasks.size());
  for (const Task& task : tasks) rows.push_back(task.signature->shape.front());
  return rows;
}

/// The numbers are rows by task.
class Allgather final : public Counted {
 public:
  Allgather(Backend& backend, std::span<const Task> tasks)
      : Counted(backend, rows_of(tasks), tasks), tasks_(tasks) {}

 private:
  Result<void> prepare() override {
    plan_.out.resize(size());
    if (!addresses(tasks_.front()).empty()) plan_.theirs.resize(size());
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const Task& task = tasks_[t];
      Shape shape = task.signature->shape;
      const auto own_rows = static_cast<std::size_t>(shape.front());
      const std::size_t row = row_bytes(*task.signature);
      shape.front() = 0;
      for (std::size_t m = 0; m < size(); ++m) {
        if (!add_rows(shape.front(), number(m, t))) return too_many_rows();
      }
      auto memory = output_of(task, shape);
      if (!memory) return std::move(memory).error();
      std::byte* out = *memory;
      plan_.in.push_back({task.in, own_rows * row});
      for (std::size_t m = 0; m < size(); ++m) {
        const std::size_t bytes = static_cast<std::size_t>(number(m, t)) * row;
        plan_.out[m].push_back({out, bytes});
        if (!plan_.theirs.empty()) plan_.theirs[m].push_back(addresses(task)[m]);
        out += bytes;
      }
    }
    return {};
  }

  /// The same for every member, as all get all rows.
  std::size_t bytes_for(std::size_t) const override {
    std::size_t bytes = 0;
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      std::int64_t rows = 0;
      for (std::size_t m = 0; m < size(); ++m) {
        if (!add_rows(rows, number(m, t))) return SIZE_MAX;
      }
      std::size_t more = 0;
      if (__builtin_mul_overflow(static_cast<std::size_t>(rows), row_bytes(*tasks_[t].signature),
                                 &more) ||
          __builtin_add_overflow(bytes, more, &bytes)) {
        return SIZE_MAX;
      }
    }
    return bytes;
  }

  std::unique_ptr<Operation> move() override { return backend().start(std::move(plan_)); }

  GatherPlan plan_;
  std::span<const Task> tasks_;
};

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  return std::make_unique<Allgather>(backend, tasks);
}

std::size_t numbers(const Members&) { return 1; }

void tell(const Task& task, const Members&, std::int64_t* numbers) {
  numbers[0] = task.signature->shape.front();
}

std::size_t bytes(const Signature& signature, const std::int64_t* numbers, int, const Members&) {
  std::size_t bytes = 0;
  const bool fits = numbers[0] >= 0 && !__builtin_mul_overflow(static_cast<std::size_t>(numbers[0]),
                                                               row_bytes(signature), &bytes);
  return fits ? bytes : SIZE_MAX;
}

Result<void> combine(const Task& task, const Backend& backend, const FastRule::Shares& shares) {
  const Signature& signature = *task.signature;
  Shape shape = signature.shape;
  shape.front() = 0;
  for (const std::int64_t* const told : shares.numbers) {
    if (!add_rows(shape.front(), *told)) return too_many_rows();
  }
  auto memory = output_of(task, shape);
  if (!memory) return std::move(memory).error();
  std::byte* out = *memory;
  for (int m = 0; m < backend.members().size(); ++m) {
    const auto member = static_cast<std::size_t>(m);
    const std::size_t length = bytes(signature, shares.numbers[member], m, backend.members());
    if (length != 0) std::memcpy(out, shares.data[member], length);
    out += length;
  }
  return {};
}

}  // namespace

const Collective kAllgather{
    .kind = Kind::Allgather,
    .rules = {.name = "ALLGATHER",
              .prefix = "allgather",
              .transfer = "GLOO_ALLGATHER",
              .fusable = true,
              .rows_may_differ = true,
              .disagreement = disagreement,
              .describe = describe_tensor},
    .check = check,
    .start = start,
    .fast = FastRule{.combine = combine, .bytes = bytes, .numbers = numbers, .tell = tell}};

}  // namespace farandole

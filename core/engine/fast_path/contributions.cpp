#include "engine/fast_path/contributions.h"

#include <algorithm>
#include <cstring>

#include "kernels/copy.h"
#include "kernels/kernels.h"

namespace farandole {

namespace {

constexpr std::size_t kMostProposed = std::size_t{64} << 10;  // bytes
/// What a rank sends to all others together with what it says.
constexpr std::size_t kMostTold = std::size_t{48} << 10;  // bytes
/// Contributions begin at multiples of this.
constexpr std::size_t kAligned = 32;

constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

static_assert(aligned(Contributions::kMostTensors * sizeof(std::uint32_t)) + kMostProposed <=
              kProposalBytes);

/// Memory for one result of a work, for as long as the result is made.
class Room final : public OutputAllocator {
 public:
  Room(std::shared_ptr<Work>& work, std::size_t index, HostPool& pool) noexcept
      : work_(work), index_(index), pool_(pool) {}
  Result<std::byte*> allocate(const Shape& shape, DType dtype) override {
    return memory_for(*work_, index_, pool_, shape, dtype, work_->name);
  }

 private:
  std::shared_ptr<Work>& work_;
  std::size_t index_;
  HostPool& pool_;
};

}  // namespace

bool Contributions::begin(Kind kind, Proposals& proposals, const Backend& backend) {
  proposals_ = &proposals;
  backend_ = &backend;
  collective_ = find_collective(kind);
  return collective_ != nullptr && collective_->fast.has_value();
}

/// How many numbers a member tells of each tensor.
std::size_t Contributions::told_of_each() const {
  return tells() ? collective_->fast->numbers(members()) : 0;
}

/// Of so many tensors, with the addresses.
std::size_t Contributions::told_bytes(std::size_t tensors) const {
  return tensors * (told_of_each() + (tells_addresses() ? 1 : 0)) * sizeof(std::int64_t);
}

/// This tensor is the one that the signature is of.
void Contributions::describe(const Tensor& tensor) {
  signature_.dtype = tensor.dtype;
  signature_.shape = tensor.shape;
}

/// Of the tensor that was described last.
Task Contributions::task_of(const Tensor& tensor, OutputAllocator* allocator) const {
  return {.signature = {std::shared_ptr<const void>(), &signature_},
          .in = tensor.in,
          .out = tensor.out,
          .allocator = allocator,
          .splits = tensor.splits,
          .received = tensor.received};
}

/// What that member brings of the tensor that was described last.
std::size_t Contributions::bytes_of(const std::int64_t* numbers, int member) const {
  const FastRule& rule = *collective_->fast;
  return rule.bytes == nullptr ? signature_.bytes()
                               : rule.bytes(signature_, numbers, member, members());
}

bool Contributions::prepare(const Submission& submission) {
  numbers_.clear();
  load_ = {};
  if (!moves_data()) return true;
  for (const Tensor& tensor : submission.tensors) {
    if (tensor.device != Device::Host) return false;
    if (!tells() && element_count(tensor.shape) <= 0) return false;
  }
  if (!tell(submission)) return false;
  load_ = weigh(submission, numbers_.data(), members().self);
  return true;
}

bool Contributions::check(const Submission& submission) {
  return std::ranges::all_of(submission.tensors, [this](const Tensor& tensor) {
    describe(tensor);
    return static_cast<bool>(collective_->check(task_of(tensor), members()));
  });
}

/// What this rank tells of its tensors. False: it cannot, or has to say why not the regular way.
bool Contributions::tell(const Submission& submission) {
  if (!tells()) return true;
  const std::size_t count = told_of_each();
  const std::size_t bytes = told_bytes(submission.tensors.size());
  if (aligned(bytes) > kMostProposed) return false;
  numbers_.resize(bytes / sizeof(std::int64_t));
  std::int64_t* numbers = numbers_.data();
  for (const Tensor& tensor : submission.tensors) {
    describe(tensor);
    const Task task = task_of(tensor);
    if (!collective_->check(task, members())) return false;
    collective_->fast->tell(task, members(), numbers);
    numbers += count;
  }
  if (tells_addresses()) {
    for (const Tensor& tensor : submission.tensors) {
      *numbers++ = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.in));
    }
  }
  return true;
}

/// What that member brings. Where members tell nothing, all of them come to the same: as if each
/// brought everything.
Contributions::Load Contributions::weigh(const Submission& submission, const std::int64_t* numbers,
                                         int member) {
  const std::size_t count = told_of_each();
  std::size_t bytes = 0;
  std::size_t room_bytes = aligned(told_bytes(submission.tensors.size()));
  for (const Tensor& tensor : submission.tensors) {
    std::size_t length = 0;
    if (tells()) {
      describe(tensor);
      length = bytes_of(numbers, member);
      numbers += count;
    } else {
      length = static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
    }
    if (length > kMostProposed) return {.bytes = length, .large = true};
    bytes += length;
    room_bytes += aligned(length);
  }
  // Everybody reads what everybody brings: as on the small path, less of it the more there are.
  const auto size = static_cast<std::size_t>(proposals_->size());
  const std::size_t most = proposals_->remote() ? kMostTold + kMostTold / size : 4 * kMostProposed;
  return {.bytes = bytes, .large = room_bytes > kMostProposed || bytes * size > most};
}

void Contributions::publish(const Submission& submission, const Proposals::Tag& tag,
                            const std::uint32_t* said) {
  std::byte* const begin = proposals_->room();
  std::byte* room = begin;
  const std::size_t said_bytes = submission.grouped ? submission.tensors.size() * sizeof *said : 0;
  std::memcpy(room, said, said_bytes);
  room += aligned(said_bytes);
  numbers_begin_ = static_cast<std::size_t>(room - begin);
  const std::size_t numbers_bytes = numbers_.size() * sizeof(std::int64_t);
  if (numbers_bytes != 0) std::memcpy(room, numbers_.data(), numbers_bytes);
  room += aligned(numbers_bytes);
  data_begin_ = static_cast<std::size_t>(room - begin);
  if (moves_data() && !load_.large) {
    const std::int64_t* numbers = numbers_.data();
    for (const Tensor& tensor : submission.tensors) {
      describe(tensor);
      const std::size_t length = bytes_of(numbers, members().self);
      if (submission.prescale == 1.0) {
        copy_to_peers(room, tensor.in, length);
      } else {
        scale_copy(room, tensor.in, length / size_of(tensor.dtype), tensor.dtype,
                   submission.prescale);
      }
      room += aligned(length);
      if (tells()) numbers += told_of_each();
    }
  }
  proposals_->propose(tag, said_bytes, static_cast<std::size_t>(room - begin));
}

/// What that member has told, once the round is agreed.
const std::int64_t* Contributions::numbers_of(int member) const {
  return tells()
             ? reinterpret_cast<const std::int64_t*>(proposals_->room_of(member) + numbers_begin_)
             : nullptr;
}

std::vector<Told> Contributions::told(const Submission& submission) const {
  if (!tells()) return {};
  const std::size_t count = told_of_each();
  std::vector<Told> told(submission.tensors.size());
  for (int member = 0; member < proposals_->size(); ++member) {
    const std::int64_t* const numbers = numbers_of(member);
    for (std::size_t i = 0; i < told.size(); ++i) {
      const std::int64_t* const own = numbers + i * count;
      told[i].numbers.insert(told[i].numbers.end(), own, own + count);
      if (tells_addresses()) {
        const std::int64_t address = numbers[told.size() * count + i];
        told[i].addresses.push_back(static_cast<std::uint64_t>(address));
      }
    }
  }
  return told;
}

bool Contributions::any_large(const Submission& submission) {
  if (!tells()) return load_.large;
  for (int member = 0; member < proposals_->size(); ++member) {
    if (weigh(submission, numbers_of(member), member).large) return true;
  }
  return false;
}

Result<void> Contributions::combine(const Submission& submission, std::shared_ptr<Work>& work,
                                    HostPool& pool) {
  const auto count = static_cast<std::size_t>(proposals_->size());
  std::vector<const std::byte*> data(count);
  std::vector<const std::int64_t*> numbers(tells() ? count : 0);
  for (std::size_t q = 0; q < count; ++q) {
    data[q] = proposals_->room_of(static_cast<int>(q)) + data_begin_;
    if (tells()) numbers[q] = numbers_of(static_cast<int>(q));
  }
  const std::size_t told = told_of_each();
  for (std::size_t i = 0; i < submission.tensors.size(); ++i) {
    const Tensor& tensor = submission.tensors[i];
    describe(tensor);
    Room memory(work, i, pool);
    auto fine = collective_->fast->combine(task_of(tensor, &memory), *backend_,
                                           {.data = data, .numbers = numbers});
    if (!fine) return fine;
    for (std::size_t q = 0; q < count; ++q) {
      data[q] += aligned(bytes_of(tells() ? numbers[q] : nullptr, static_cast<int>(q)));
      if (tells()) numbers[q] += told;
    }
  }
  return {};
}

}  // namespace farandole

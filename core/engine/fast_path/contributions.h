/// What members bring to a proposal: numbers that a collective tells, and of small operations the
/// data. And what comes of it: the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "collectives/collective.h"
#include "engine/execution/submissions.h"
#include "transport/proposals.h"

namespace farandole {

/// Of one proposal at a time, by the holder of the progress lock.
///
/// In the room of a member, each part at a multiple of 32 bytes: the numbers of the signatures of a
/// group, the numbers told and the addresses, the data of one tensor after the other.
class Contributions {
 public:
  static constexpr std::size_t kMostTensors = 1024;

  /// Begins with what is to be proposed in those rounds. `backend`: of the set. False: it never
  /// takes the fast path.
  [[nodiscard]] bool begin(Kind kind, Proposals& proposals, const Backend& backend);
  [[nodiscard]] const Collective& collective() const noexcept { return *collective_; }
  /// The caller fills in all but dtype and shape, which are those of the tensor looked at last.
  [[nodiscard]] Signature& signature() noexcept { return signature_; }
  /// There is a result to be made, not only something agreed.
  [[nodiscard]] bool moves_data() const noexcept { return collective_->fast->combine != nullptr; }

  /// What depends on the members is right in every tensor. Signatures have one number for all sets,
  /// so another set may have agreed on one that makes no sense in this one.
  [[nodiscard]] bool check(const Submission& submission);
  /// Weighs what this rank brings. False: it cannot go this way, whatever the others bring.
  [[nodiscard]] bool prepare(const Submission& submission);
  /// Puts it into the room of this rank, and proposes. `said`: the signature of each tensor in
  /// numbers that all ranks know.
  void publish(const Submission& submission, const Proposals::Tag& tag, const std::uint32_t* said);

  // Once all have agreed; all members come to the same.

  /// The data of some member have not come with its proposal.
  [[nodiscard]] bool any_large(const Submission& submission);
  /// What all members tell of each tensor. Empty: nothing.
  [[nodiscard]] std::vector<Told> told(const Submission& submission) const;
  /// Makes the results from what is in the rooms. `work`: takes what has no memory yet.
  Result<void> combine(const Submission& submission, std::shared_ptr<Work>& work, HostPool& pool);
  /// That this rank has brought.
  [[nodiscard]] std::size_t bytes() const noexcept { return load_.bytes; }

 private:
  /// How much a member brings, and whether its data go with the proposal.
  struct Load {
    std::size_t bytes = 0;
    bool large = false;
  };
  [[nodiscard]] bool tells() const noexcept { return collective_->fast->numbers != nullptr; }
  [[nodiscard]] const Members& members() const noexcept { return backend_->members(); }
  /// Members that may read each other's memory also tell where their tensors lie.
  [[nodiscard]] bool tells_addresses() const noexcept { return tells() && !proposals_->remote(); }
  [[nodiscard]] std::size_t told_of_each() const;
  [[nodiscard]] std::size_t told_bytes(std::size_t tensors) const;
  void describe(const Tensor& tensor);
  [[nodiscard]] Task task_of(const Tensor& tensor, OutputAllocator* allocator = nullptr) const;
  [[nodiscard]] std::size_t bytes_of(const std::int64_t* numbers, int member) const;
  [[nodiscard]] bool tell(const Submission& submission);
  [[nodiscard]] Load weigh(const Submission& submission, const std::int64_t* numbers, int member);
  [[nodiscard]] const std::int64_t* numbers_of(int member) const;

  Proposals* proposals_ = nullptr;
  const Backend* backend_ = nullptr;
  const Collective* collective_ = nullptr;
  Signature signature_;                // kept between proposals for its memory
  std::vector<std::int64_t> numbers_;  // that this rank tells, and then the addresses
  Load load_;                          // of this rank
  std::size_t numbers_begin_ = 0;
  std::size_t data_begin_ = 0;
};

}  // namespace farandole

/// The record of a collective: everything that the engine knows about one kind of operation.
/// To add one: a number in types.h, a file beside this with its record, its name in registry.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "collectives/registry.h"
#include "collectives/signature.h"
#include "collectives/task.h"

namespace farandole {

/// How a kind runs on the fast path, where every member sees the inputs of all members.
struct FastRule {
  /// What all members have brought of one tensor, by set rank.
  struct Shares {
    std::span<const std::byte* const> data;        ///< the inputs, scaled by the prescale
    std::span<const std::int64_t* const> numbers;  ///< what each has told; empty: nothing
  };
  /// Makes the result of one tensor. Null: the kind moves no data.
  Result<void> (*combine)(const Task& task, const Backend& backend, const Shares& shares) = nullptr;
  /// How many bytes that member brings of a tensor, whoever asks; SIZE_MAX: too many to count.
  /// Null: all bytes of the signature.
  std::size_t (*bytes)(const Signature& signature, const std::int64_t* numbers, int member,
                       const Members& members) = nullptr;
  /// How many numbers each member tells of a tensor, besides its data. Null: none, as the members
  /// agree on its shape.
  std::size_t (*numbers)(const Members& members) = nullptr;
  /// Writes these numbers. After Collective::check().
  void (*tell)(const Task& task, const Members& members, std::int64_t* numbers) = nullptr;
};

struct Collective {
  Kind kind;
  Rules rules;
  /// What is wrong with a submission, as far as this rank can see alone. The memory of the task
  /// must not be touched yet.
  Result<void> (*check)(const Task& task, const Members& members);
  /// Starts a batch. The tasks agree in all that fusion compares and outlive the operation.
  std::unique_ptr<Operation> (*start)(Backend& backend, std::span<const Task> tasks);
  /// No value: the kind never takes the fast path.
  std::optional<FastRule> fast = std::nullopt;
  /// It reads or writes tensors itself, not by the backend's verbs alone: tensors of a device are
  /// copied to the host as a whole. All kinds do so where they average integers.
  bool host_only = false;
};

/// The checks that all kinds share, in documented order; empty if the two agree.
[[nodiscard]] std::string basic_disagreement(const Signature& one, const Signature& other);
[[nodiscard]] std::string shape_disagreement(const Signature& one, const Signature& other);
[[nodiscard]] std::string op_disagreement(const Signature& one, const Signature& other);
[[nodiscard]] std::string root_disagreement(const Signature& one, const Signature& other);
[[nodiscard]] std::string factor_disagreement(const Signature& one, const Signature& other);
/// The check for kinds whose number of rows may differ: dimensions, and all extents but the first.
[[nodiscard]] std::string row_disagreement(const Signature& one, const Signature& other);
[[nodiscard]] std::string device_disagreement(const Signature& one, const Signature& other);

/// Refuses to reduce what is only moved, with what to do.
[[nodiscard]] Result<void> check_dtype(const Signature& signature);
/// Refuses a root that is no member.
[[nodiscard]] Result<void> check_root(const Signature& signature, const Members& members);
/// Bytes of one row of a tensor that has rows.
[[nodiscard]] std::size_t row_bytes(const Signature& signature) noexcept;
/// The result of a reduction on this member: if rows are scattered, its share of them.
[[nodiscard]] Shape shape_of_result(const Signature& signature, const Members& members);
/// The first row of that member's share, if rows are scattered; for the member beyond the last,
/// the number of rows. Shares are equal, but for the rest: the first members get one row more each.
[[nodiscard]] std::int64_t first_row(std::int64_t rows, std::int64_t size, std::int64_t member);
/// Its set rank, of a signature that has been checked.
[[nodiscard]] int root_of(const Signature& signature, const Members& members) noexcept;

/// Averaging is a sum whose postscale is divided by the number of members, on the double factor.
[[nodiscard]] Reduction reduction_of(const Signature& signature, int members);

/// The reduction of what all members have brought of `count` elements, scaled by the prescale: of
/// one tensor, or of a part of it.
void combine_shares(std::byte* out, std::span<const std::byte* const> shares, std::size_t count,
                    const Signature& signature, const Backend& backend);

/// The description of most kinds. `how` follows the name, `source` follows the tensor.
[[nodiscard]] std::string describe_tensor(const Signature& signature, std::string_view how,
                                          std::string_view source);
[[nodiscard]] std::string describe_tensor(const Signature& signature);
/// The same with the reduction.
[[nodiscard]] std::string describe_reduction(const Signature& signature);

}  // namespace farandole

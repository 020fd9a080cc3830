/// The engine as a table of C functions, for framework glue: small shared objects that link to
/// nothing of ours. They are handed the table's address and the engine's, and check the version.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// One tensor, as farandole::Tensor. Memory is contiguous, and stays valid until the callback.
struct FarandoleTensor {
  const void* in;
  void* out;           ///< null: `allocate` is asked
  std::int32_t dtype;  ///< numbers of farandole::DType
  std::int32_t dims;
  const std::int64_t* shape;
  std::int32_t device;        ///< numbers of farandole::Device; 0: host memory
  std::int32_t device_index;  ///< among those of its kind
  void* stream;               ///< of the device; null: none
  /// Alltoall: rows for each member of the set, `members` numbers; null: equally many.
  const std::int64_t* splits;
  std::int32_t members;
  /// Alltoall: gets the number of rows from each member, as many numbers; null: not wanted.
  std::int32_t* received;
};

/// How an operation ended: code null on success. Texts are valid during the call only.
struct FarandoleOutcome {
  const char* code;
  const char* message;
  std::int32_t rank;
  std::int64_t value;  ///< of a join: the rank that was last
  /// Not 0: it failed, but something that is stuck may still touch the memory of its tensors, and
  /// of results that `allocate` gave: it must never be given back.
  std::int32_t in_use;
};

/// As farandole::Submission.
struct FarandoleSubmission {
  std::int32_t kind;  ///< numbers of farandole::Kind
  std::int32_t op;    ///< numbers of farandole::ReduceOp
  const char* name;   ///< null: by handle number
  double prescale;
  double postscale;
  std::int32_t root;
  std::int32_t process_set;
  std::int32_t mode;     ///< farandole::Mode::Callback; there is no other way to learn of the end
  std::int32_t grouped;  ///< not 0: a group, also of one tensor
  std::int32_t count;    ///< tensors; 0 for a kind that has none
  const FarandoleTensor* tensors;
  /// Memory for the result of tensor `index`, which stays valid until the callback; null: there is
  /// none. On any thread, before done(); must not block. Null: no tensor lacks `out`.
  void* (*allocate)(void* context, std::int32_t index, const std::int64_t* shape,
                    std::int32_t dims);
  /// Completion, on a thread of the engine; may submit. Called once if submit() returned kUnderWay.
  void (*done)(void* context, const FarandoleOutcome* outcome);
  void* context;
};

struct FarandoleApi {
  std::uint32_t version;  ///< of this struct; entries are only ever added at the end
  std::uint32_t bytes;
  /// kUnderWay: done() is called at the end. kOver: that was all, and done() is not called.
  /// kRefused: `*outcome` says why, and done() is not called.
  std::int32_t (*submit)(void* engine, const FarandoleSubmission* submission,
                         FarandoleOutcome* outcome);
  /// Number of members of a process set, and the place of this rank among them, -1 if it is none.
  /// 0: the set exists.
  std::int32_t (*process_set)(void* engine, std::int32_t number, std::int32_t* size,
                              std::int32_t* rank);
};
}

namespace farandole {
inline constexpr std::uint32_t kApiVersion = 5;
inline constexpr std::int32_t kUnderWay = 0;
inline constexpr std::int32_t kRefused = 1;
inline constexpr std::int32_t kOver = 2;
/// Immutable, lives as long as the process.
[[nodiscard]] const FarandoleApi* capi_table() noexcept;
}  // namespace farandole

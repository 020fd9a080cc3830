/// The engine as a table of C functions, for framework glue: small shared objects that link to
/// nothing of ours. They are handed the table's address and the engine's, and check the version.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// One tensor. Memory is the host's, contiguous, and stays valid until the callback.
struct RuedaTensor {
  std::int32_t dtype;  ///< numbers of rueda::DType
  std::int32_t dims;
  const std::int64_t* shape;
  const void* in;
  void* out;  ///< null: `allocate` is asked
};

/// How an operation ended: code null on success. Texts are valid during the call only.
struct RuedaOutcome {
  const char* code;
  const char* message;
  std::int32_t rank;
};

struct RuedaRequest {
  std::int32_t kind;  ///< numbers of rueda::Kind
  std::int32_t op;    ///< numbers of rueda::ReduceOp
  const char* name;   ///< null: by handle number
  double prescale;
  double postscale;
  std::int32_t root;
  std::int32_t process_set;
  std::int32_t count;  ///< tensors; more than one: a group
  const RuedaTensor* tensors;
  /// Completion, on a thread of the engine; may submit. Called once if submit() returned 0.
  void (*done)(void* context, const RuedaOutcome* outcome);
  void* context;
};

struct RuedaApi {
  std::uint32_t version;  ///< of this struct; entries are only ever added at the end
  std::uint32_t bytes;
  /// 0: submitted. Else `*outcome` says why not, and done() is not called.
  std::int32_t (*submit)(void* engine, const RuedaRequest* request, RuedaOutcome* outcome);
};
}

namespace rueda {
inline constexpr std::uint32_t kApiVersion = 1;
/// Immutable, lives as long as the process.
[[nodiscard]] const RuedaApi* capi_table() noexcept;
}  // namespace rueda

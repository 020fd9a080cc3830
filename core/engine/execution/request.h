/// What users ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/signature.h"
#include "engine/execution/work.h"

namespace rueda {

/// One tensor of a submission.
struct TensorRequest {
  DType dtype = DType::Float32;
  Shape shape;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  ///< null: the engine allocates
  /// Alltoall: rows for each member; empty: equally many.
  std::vector<std::int64_t> splits = {};
  /// Alltoall: gets the number of rows from each member; null: not wanted.
  std::int32_t* received = nullptr;
};

/// A submission: one tensor, or a group under one handle.
struct Request {
  Kind kind = Kind::Allreduce;
  std::string name;  ///< the user's, without prefix; empty: counted
  std::vector<TensorRequest> tensors;
  bool grouped = false;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = -1;
  std::int32_t process_set = 0;
  std::vector<Rank> ranks;  ///< of the set to add
  bool waited = false;      ///< the caller will wait for it at once
  bool demanded = false;    ///< its end is wanted now, but no thread stands still for it
  std::function<void(const Work&)> on_done;
  OutputProvider provide;  ///< of results without `out`; null: the engine allocates
  std::uint64_t call = 0;  ///< of a call without name: its number, if it has been counted already
};

/// The kind that ranks negotiate. How Adasum combines has little in common with the other
/// operators, but users ask for it by the operator of an allreduce.
[[nodiscard]] inline Kind kind_of(const Request& request) noexcept {
  const bool adasum = request.kind == Kind::Allreduce && request.op == ReduceOp::Adasum;
  return adasum ? Kind::Adasum : request.kind;
}

/// Collective over the world; they end with the number of the set.
[[nodiscard]] Request addition_of_set(std::vector<Rank> ranks);
[[nodiscard]] Request removal_of_set(std::int32_t id);

}  // namespace rueda

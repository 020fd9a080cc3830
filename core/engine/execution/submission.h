/// What users ask for: the record that crosses every border, with the same names and fields in the
/// binding and in the C functions for glue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/signature.h"
#include "devices/devices.h"
#include "engine/execution/work.h"

namespace farandole {

class Devices;

/// One tensor of a submission; contiguous.
struct Tensor {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  ///< null: the engine allocates
  DType dtype = DType::Float32;
  Shape shape = {};
  Device device = Device::Host;
  std::int32_t device_index = 0;  ///< among those of its kind
  /// Of the device: what is in it comes before, and what is put into it later comes after the
  /// operation. Null: the default stream.
  void* stream = nullptr;
  bool streamless = false;  ///< whoever waits for it, waits on the host: no stream is known
  /// Alltoall: rows for each member; empty: equally many.
  std::vector<std::int64_t> splits = {};
  /// Alltoall: gets the number of rows from each member; null: not wanted.
  std::int32_t* received = nullptr;
  bool absent = false;  ///< see Signature; `in` is null, and there are zeros in `out`
  // Filled by prepare().
  std::shared_ptr<EngineDevice> on = {};          ///< null: in host memory
  std::shared_ptr<const DevicePoint> ready = {};  ///< the content is there
};

/// One tensor, or a group under one handle; some kinds have no tensors (Rules::without_tensors).
struct Submission {
  Kind kind = Kind::Allreduce;
  std::string name = {};  ///< the user's, without prefix; empty: counted
  std::vector<Tensor> tensors = {};
  bool grouped = false;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = -1;  ///< of a removal: the set
  std::int32_t process_set = 0;
  std::vector<Rank> ranks = {};  ///< of the set to add
  Mode mode = Mode::Asynchronous;
  std::function<void(const Work&)> on_done = {};  ///< at its end; see Mode::Callback
  OutputProvider provide = {};  ///< of results without `out`; null: the engine allocates
  std::uint64_t call = 0;  ///< of a call without name: its number, if it has been counted already
};

/// A thread waits for it, or will at once.
[[nodiscard]] inline bool is_awaited(const Submission& submission) noexcept {
  return submission.mode == Mode::Awaited || submission.mode == Mode::Blocking;
}
/// Its end is wanted now, but no thread stands still for it: a graph goes on when it is done, and
/// other parts of the graph may go on before.
[[nodiscard]] inline bool is_demanded(const Submission& submission) noexcept {
  return submission.mode == Mode::Callback || is_set_change(submission.kind);
}

/// The kind that ranks negotiate. How Adasum combines has little in common with the other
/// operators, but users ask for it by the operator of an allreduce.
[[nodiscard]] inline Kind kind_of(const Submission& submission) noexcept {
  const bool adasum = submission.kind == Kind::Allreduce && submission.op == ReduceOp::Adasum;
  return adasum ? Kind::Adasum : submission.kind;
}

/// Completes a submission of a kind without tensors, notes in the streams of devices where tensors
/// are ready, and refuses memory that nothing here serves, and none. Then there is at least one
/// tensor. Before any part of the engine has seen the submission; takes no lock of it.
[[nodiscard]] Result<void> prepare(Submission& submission, Devices& devices);

}  // namespace farandole

/// Kernels: what runs when TensorFlow comes to an op.
///
/// A kernel submits to the engine and returns; no thread of TensorFlow is held while ranks wait for
/// each other. Where they are there already, the op is over when its kernel returns, else the
/// engine's callback thread completes it. Results are computed in the memory of the input where
/// TensorFlow gives it away, else in memory that TensorFlow allocates.
#pragma once

#include <cstdint>
#include <string>

#include "glue/tensorflow_api.h"
#include "glue/world.h"
#include "types.h"

namespace farandole::tf {

/// What is known of an op when its kernel is made.
struct Kernel {
  std::string type;
  std::string name;  ///< identity across ranks
  Kind kind = Kind::Allreduce;
  bool grouped = false;
  bool in_place = false;  ///< results have the shapes of the inputs, so these can become those
  std::int32_t op = static_cast<std::int32_t>(ReduceOp::Sum);
  std::int32_t process_set = 0;
  std::int32_t root = -1;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// The world that kernels submit to.
[[nodiscard]] glue::CurrentWorld& current();

/// Of asynchronous kernels; `kernel` is a Kernel.
void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* completed);

using Question = std::int32_t (*)(const glue::CurrentWorld::Use& world, std::int32_t process_set);
/// Of kernels that answer at once.
void answer(const Kernel& kernel, TF_OpKernelContext* context, Question ask);

}  // namespace farandole::tf

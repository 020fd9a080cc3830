#include "glue/tensorflow_kernels.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glue/tensorflow_continuation.h"
#include "glue/tensorflow_values.h"

namespace farandole::tf {

using glue::CurrentWorld;

CurrentWorld& current() {
  // Never destroyed: TensorFlow's threads may still run when the process ends.
  static auto& world = *new CurrentWorld;
  return world;
}

namespace {

constexpr const char* kNotInitialized =
    "Horovod has not been initialized (or has been shut down); call hvd.init() first.";

struct TypeName {
  int theirs;  ///< TF_DataType
  DType ours;
};
constexpr std::array<TypeName, 15> kTypes{{{1, DType::Float32},
                                           {2, DType::Float64},
                                           {3, DType::Int32},
                                           {4, DType::UInt8},
                                           {5, DType::Int16},
                                           {6, DType::Int8},
                                           {9, DType::Int64},
                                           {10, DType::Bool},
                                           {14, DType::BFloat16},
                                           {17, DType::UInt16},
                                           {19, DType::Float16},
                                           {8, DType::Complex64},
                                           {18, DType::Complex128},
                                           {22, DType::UInt32},
                                           {23, DType::UInt64}}};

const TypeName* type_of(const TF_Tensor* tensor) {
  const int theirs = api().TF_TensorType(tensor);
  for (const TypeName& type : kTypes) {
    if (type.theirs == theirs) return &type;
  }
  return nullptr;
}

constexpr int kInt32 = 3;

int code_of(std::string_view code) {
  if (code == "invalid_argument" || code == "duplicate") return kInvalidArgument;
  if (code == "mismatch") return kFailedPrecondition;
  if (code == "unsupported") return kAborted;
  return kUnknown;  // peer_lost, timeout, shutdown, backend, internal
}

/// One run of a kernel, until its callback.
struct Run {
  Run(const Kernel& its_kernel, TF_OpKernelContext* its_context, TF_AsyncOpKernelDoneCallback* done)
      : kernel(its_kernel), context(its_context), continuation(done) {}

  const Kernel& kernel;  // outlives the run: TensorFlow ends kernels when nothing runs
  TF_OpKernelContext* context;
  Continuation continuation;
  std::vector<Tensor> inputs;         // null where the input has become the output
  std::vector<Tensor> outputs;        // null until the size is known
  std::vector<int> types;             // TF_DataType by output
  std::vector<std::int64_t> extents;  // of all inputs, one after another
  std::vector<FarandoleTensor> tensors;
  std::vector<std::int64_t> splits;
  Tensor received;  // of alltoall: how many rows from each member

  void fail(int code, const std::string& message) const {
    Status status;
    status.set(code, kernel.type + " (" + kernel.name + "): " + message);
    fail(status);
  }
  /// Something may still work on it: TensorFlow will not use it again.
  void leave_memory() {
    for (auto* owned : {&inputs, &outputs}) {
      for (Tensor& tensor : *owned) static_cast<void>(tensor.release());
    }
    static_cast<void>(received.release());
  }
  void fail(const Status& status) const { api().TF_OpKernelContext_Failure(context, status.get()); }
};

void set_scalar(TF_OpKernelContext* context, std::int32_t value) {
  Status status;
  const Tensor output(
      api().TF_AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof(value), status.get()));
  if (status.ok()) {
    std::memcpy(api().TF_TensorData(output.get()), &value, sizeof(value));
  } else {
    api().TF_OpKernelContext_Failure(context, status.get());
  }
}

/// The only place where a run ends. It is gone afterwards, unless its kernel waits for it.
void end(Run* run) {
  // Outputs belong to TensorFlow's context already; what is held here would keep them from being
  // given away downstream.
  run->inputs.clear();
  run->outputs.clear();
  run->received.reset();
  const bool ours = run->continuation.kept();
  run->continuation.run();
  if (ours) delete run;
}

void done(void* context, const FarandoleOutcome* outcome) {
  auto* run = static_cast<Run*>(context);
  if (outcome->code != nullptr) {
    run->fail(code_of(outcome->code), outcome->message);
    if (outcome->in_use != 0) run->leave_memory();
  } else if (run->kernel.kind == Kind::Join) {
    set_scalar(run->context, static_cast<std::int32_t>(outcome->value));
  }
  end(run);
}

void* allocate(void* context, std::int32_t index, const std::int64_t* shape, std::int32_t dims) {
  auto* run = static_cast<Run*>(context);
  const auto i = static_cast<std::size_t>(index);
  std::int64_t elements = 1;
  for (std::int32_t d = 0; d < dims; ++d) elements *= shape[d];
  const std::size_t bytes =
      static_cast<std::size_t>(elements) * size_of(static_cast<DType>(run->tensors[i].dtype));
  Status status;
  run->outputs[i].reset(api().TF_AllocateOutput(run->context, index, run->types[i], shape, dims,
                                                bytes, status.get()));
  if (!status.ok()) return nullptr;
  // An empty result has no memory, which the engine would take for none left.
  static std::byte nothing;
  return bytes == 0 ? &nothing : api().TF_TensorData(run->outputs[i].get());
}

/// Null: `status` says why.
Tensor input_of(const Run& run, int i, const Status& status) {
  TF_Tensor* tensor = nullptr;
  api().TF_GetInput(run.context, i, &tensor, status.get());
  return Tensor(status.ok() ? tensor : nullptr);
}

/// Takes input `i`, and gives it an output if its size is known. False: the run has failed.
bool prepare(Run& run, int i, const Status& status) {
  Tensor input = input_of(run, i, status);
  if (!input) {
    run.fail(status);
    return false;
  }
  const TypeName* type = type_of(input.get());
  if (type == nullptr) {
    run.fail(kInvalidArgument, "tensors of type " +
                                   std::to_string(api().TF_TensorType(input.get())) +
                                   " are not supported");
    return false;
  }
  const int dims = api().TF_NumDims(input.get());
  const std::size_t first = run.extents.size();
  for (int d = 0; d < dims; ++d) run.extents.push_back(api().TF_Dim(input.get(), d));
  Tensor output;
  if (run.kernel.in_place) {
    // TensorFlow gives memory away only if nobody else refers to it; this handle does.
    input.reset();
    int forwarded = -1;
    output.reset(api().TF_ForwardInputOrAllocateOutput(
        run.context, &i, 1, i, run.extents.data() + first, dims, &forwarded, status.get()));
    if (status.ok() && forwarded < 0) input = input_of(run, i, status);
    if (!status.ok()) {
      run.fail(status);
      return false;
    }
  }
  void* const out = output ? api().TF_TensorData(output.get()) : nullptr;
  run.types.push_back(type->theirs);
  run.tensors.push_back({.in = input ? api().TF_TensorData(input.get()) : out,
                         .out = out,
                         .dtype = static_cast<std::int32_t>(type->ours),
                         .dims = dims,
                         .shape = nullptr,
                         .device = static_cast<std::int32_t>(Device::Host),
                         .device_index = 0,
                         .stream = nullptr,
                         .splits = nullptr,
                         .members = 0,
                         .received = nullptr});
  run.inputs.push_back(std::move(input));
  run.outputs.push_back(std::move(output));
  return true;
}

/// False: the run has failed.
bool prepare_all(Run& run, int count) {
  const auto room = static_cast<std::size_t>(count);
  run.inputs.reserve(room);
  run.outputs.reserve(room);
  run.types.reserve(room);
  run.tensors.reserve(room);
  const Status status;
  for (int i = 0; i < count; ++i) {
    if (!prepare(run, i, status)) return false;
  }
  const std::int64_t* extent = run.extents.data();
  for (FarandoleTensor& tensor : run.tensors) {
    tensor.shape = extent;
    extent += tensor.dims;
  }
  return true;
}

/// Alltoall: what goes to whom, and where the answer goes. False: the run has failed.
bool prepare_splits(Run& run, std::int32_t members) {
  const Status status;
  const Tensor splits = input_of(run, 1, status);
  if (splits) {
    if (api().TF_NumDims(splits.get()) > 1) {
      run.fail(kInvalidArgument, "splits must have one dimension, one number for each member");
      return false;
    }
    const auto* numbers = static_cast<const std::int32_t*>(api().TF_TensorData(splits.get()));
    const std::size_t count = api().TF_TensorByteSize(splits.get()) / sizeof(std::int32_t);
    run.splits.assign(numbers, numbers + count);
    const std::int64_t shape = members;
    run.received.reset(api().TF_AllocateOutput(
        run.context, 1, kInt32, &shape, 1, static_cast<std::size_t>(members) * sizeof(std::int32_t),
        status.get()));
  }
  if (!status.ok()) {
    run.fail(status);
    return false;
  }
  FarandoleTensor& tensor = run.tensors.front();
  if (!run.splits.empty()) {
    tensor.splits = run.splits.data();
    tensor.members = static_cast<std::int32_t>(run.splits.size());
  }
  tensor.received = static_cast<std::int32_t*>(api().TF_TensorData(run.received.get()));
  return true;
}

/// True: done() will be called. False: the run is over, or has failed and its status says why.
bool submit(Run& run) {
  const CurrentWorld::Use world(current());
  if (!world) {
    run.fail(kFailedPrecondition, kNotInitialized);
    return false;
  }
  const Kernel& kernel = run.kernel;
  std::int32_t members = 0;
  if (kernel.kind != Kind::Join) {
    std::int32_t own = -1;
    if (world->api->process_set(world->engine, kernel.process_set, &members, &own) != 0) {
      run.fail(kInvalidArgument,
               "process set " + std::to_string(kernel.process_set) + " does not exist (any more)");
      return false;
    }
    if (own < 0) {
      run.fail(kInvalidArgument, "rank " + std::to_string(world->rank) +
                                     " is not a member of process set " +
                                     std::to_string(kernel.process_set));
      return false;
    }
    const int inputs = kernel.kind == Kind::Alltoall ? 1 : api().TF_NumInputs(run.context);
    if (!prepare_all(run, inputs)) return false;
    if (kernel.kind == Kind::Alltoall && !prepare_splits(run, members)) return false;
  }
  const FarandoleSubmission submission{.kind = static_cast<std::int32_t>(kernel.kind),
                                       .op = kernel.op,
                                       .name = kernel.name.c_str(),
                                       .prescale = kernel.prescale,
                                       .postscale = kernel.postscale,
                                       .root = kernel.root,
                                       .process_set = kernel.process_set,
                                       .mode = static_cast<std::int32_t>(Mode::Callback),
                                       .grouped = kernel.grouped,
                                       .count = static_cast<std::int32_t>(run.tensors.size()),
                                       .tensors = run.tensors.data(),
                                       .allocate = allocate,
                                       .done = done,
                                       .context = &run};
  FarandoleOutcome refused{};
  switch (world->api->submit(world->engine, &submission, &refused)) {
    case kUnderWay:
      return true;
    case kOver:
      return false;
    default:
      run.fail(code_of(refused.code), refused.message);
      return false;
  }
}

}  // namespace

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* completed) {
  auto* run = new Run(*static_cast<const Kernel*>(kernel), context, completed);
  const bool kept = run->continuation.kept();
  if (!submit(*run)) end(run);
  if (kept) return;  // `run` is the callback's, and may be gone
  run->continuation.await();
  delete run;
}

void answer(const Kernel& kernel, TF_OpKernelContext* context, Question ask) {
  const CurrentWorld::Use world(current());
  if (world) {
    set_scalar(context, ask(world, kernel.process_set));
    return;
  }
  Status status;
  status.set(kFailedPrecondition, kNotInitialized);
  api().TF_OpKernelContext_Failure(context, status.get());
}

}  // namespace farandole::tf

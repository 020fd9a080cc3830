/// The collectives as TensorFlow ops.
///
/// A kernel submits to the engine and returns; no thread of TensorFlow is held while ranks wait for
/// each other. The engine's callback thread completes the op. Results are computed in the memory of
/// the input where TensorFlow gives it away, else in memory that TensorFlow allocates.
///
/// An op's identity across ranks is `tensor_name`, or else the name of its node; eager nodes have
/// the name of their type, so those rely on the order of calls, which eager execution keeps.

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glue/tensorflow_api.h"
#include "glue/world.h"
#include "types.h"

namespace rueda::tf {

namespace {

using glue::CurrentWorld;
using glue::World;

// Never destroyed: TensorFlow's threads may still run when the process ends.
CurrentWorld& current() {
  static auto& world = *new CurrentWorld;
  return world;
}

constexpr const char* kNotInitialized =
    "Horovod has not been initialized (or has been shut down); call hvd.init() first.";

// -- what TensorFlow calls things ---------------------------------------------------------------

struct TypeName {
  int theirs;  ///< TF_DataType
  DType ours;
};
constexpr std::array<TypeName, 11> kTypes{{{1, DType::Float32},
                                           {2, DType::Float64},
                                           {3, DType::Int32},
                                           {4, DType::UInt8},
                                           {5, DType::Int16},
                                           {6, DType::Int8},
                                           {9, DType::Int64},
                                           {10, DType::Bool},
                                           {14, DType::BFloat16},
                                           {17, DType::UInt16},
                                           {19, DType::Float16}}};

const TypeName* type_of(const TF_Tensor* tensor) {
  const int theirs = api().TF_TensorType(tensor);
  for (const TypeName& type : kTypes) {
    if (type.theirs == theirs) return &type;
  }
  return nullptr;
}

constexpr int kInt32 = 3;

constexpr const char* kReducible =
    "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}";
constexpr const char* kMovable =
    "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}";

int code_of(std::string_view code) {
  if (code == "invalid_argument" || code == "duplicate") return kInvalidArgument;
  if (code == "mismatch") return kFailedPrecondition;
  if (code == "unsupported") return kAborted;
  return kUnknown;  // peer_lost, timeout, shutdown, backend, internal
}

class Status {
 public:
  Status() : status_(api().TF_NewStatus()) {}
  ~Status() { api().TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  [[nodiscard]] TF_Status* get() const { return status_; }
  [[nodiscard]] bool ok() const { return api().TF_GetCode(status_) == kOk; }
  void set(int code, const std::string& message) {
    api().TF_SetStatus(status_, code, message.c_str());
  }

 private:
  TF_Status* status_;
};

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { api().TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;

std::vector<std::int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(api().TF_NumDims(tensor)));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    shape[i] = api().TF_Dim(tensor, static_cast<int>(i));
  }
  return shape;
}

// -- completion ---------------------------------------------------------------------------------

/// TensorFlow's continuation of an op.
///
/// TensorFlow passes the address of a std::function<void()> that is a parameter of its own caller,
/// and so dies when the kernel returns: a copy is kept. That is the only thing here that relies on
/// more than the C API, so the first one is looked at. If it is not what it was in every release so
/// far, kernels wait for the end of their operation instead: slower, and right.
class Continuation {
 public:
  explicit Continuation(TF_AsyncOpKernelDoneCallback* done) : given_(done) {
    if (can_keep(done)) kept_.emplace(*reinterpret_cast<Function*>(done));
  }
  [[nodiscard]] bool kept() const { return kept_.has_value(); }

  /// The op's context is gone afterwards.
  void run() {
    if (kept_) {
      api().TF_RunAsyncOpKernelDoneCallback(
          reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&*kept_));
    } else {
      ended_.release();
    }
  }

  /// Where it is not kept: in the kernel, which still has the original.
  void await() {
    ended_.acquire();
    api().TF_RunAsyncOpKernelDoneCallback(given_);
  }

 private:
  using Function = std::function<void()>;

  /// Whether the words of libstdc++'s std::function (two of storage, manager, invoker) point into
  /// TensorFlow. Asked once: each look-up takes a quarter of a millisecond in a library that big.
  static bool can_keep(void* done) {
    static const bool can = [done] {
      static_assert(sizeof(Function) == 4 * sizeof(void*));
      auto* const* words = static_cast<void**>(done);
      for (const void* code : {words[2], words[3]}) {
        Dl_info found{};
        if (code == nullptr || dladdr(code, &found) == 0 || found.dli_fname == nullptr ||
            std::strstr(found.dli_fname, "tensorflow") == nullptr) {
          return false;
        }
      }
      return true;
    }();
    return can;
  }

  TF_AsyncOpKernelDoneCallback* given_;
  std::optional<Function> kept_;
  std::binary_semaphore ended_{0};
};

// -- kernels ------------------------------------------------------------------------------------

/// What is known of an op when its kernel is made.
struct Kernel {
  std::string type;
  std::string name;  ///< identity across ranks
  Kind kind = Kind::Allreduce;
  bool grouped = false;
  std::int32_t op = static_cast<std::int32_t>(ReduceOp::Sum);
  std::int32_t process_set = 0;
  std::int32_t root = -1;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// One run of a kernel, until its callback.
struct Run {
  Run(const Kernel& its_kernel, TF_OpKernelContext* its_context, TF_AsyncOpKernelDoneCallback* done)
      : kernel(its_kernel), context(its_context), continuation(done) {}

  const Kernel& kernel;  // outlives the run: TensorFlow ends kernels when nothing runs
  TF_OpKernelContext* context;
  Continuation continuation;
  std::vector<Tensor> inputs;   // null where the input has become the output
  std::vector<Tensor> outputs;  // null until the size is known
  std::vector<int> types;       // TF_DataType by output
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<RuedaTensor> tensors;
  std::vector<std::int64_t> splits;
  Tensor received;

  void fail(int code, const std::string& message) const {
    Status status;
    status.set(code, kernel.type + " (" + kernel.name + "): " + message);
    api().TF_OpKernelContext_Failure(context, status.get());
  }
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

void done(void* context, const RuedaOutcome* outcome) {
  auto* run = static_cast<Run*>(context);
  if (outcome->code != nullptr) {
    run->fail(code_of(outcome->code), outcome->message);
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

/// Whether results have the shape of the inputs, so that one can become the other.
bool keeps_shape(Kind kind) { return kind == Kind::Allreduce || kind == Kind::Broadcast; }

/// Takes input `i`, and gives it an output if its size is known. False: the run has failed.
bool prepare(Run& run, int i) {
  Status status;
  TF_Tensor* in = nullptr;
  api().TF_GetInput(run.context, i, &in, status.get());
  Tensor input(in);
  Tensor output;
  if (status.ok()) {
    const TypeName* type = type_of(in);
    if (type == nullptr) {
      run.fail(kInvalidArgument,
               "tensors of type " + std::to_string(api().TF_TensorType(in)) + " are not supported");
      return false;
    }
    run.types.push_back(type->theirs);
    run.tensors.push_back({.dtype = static_cast<std::int32_t>(type->ours),
                           .dims = api().TF_NumDims(in),
                           .shape = nullptr,
                           .in = nullptr,
                           .out = nullptr,
                           .splits = nullptr,
                           .members = 0,
                           .received = nullptr});
    run.shapes.push_back(shape_of(in));
    if (keeps_shape(run.kernel.kind)) {
      // TensorFlow gives memory away only if nobody else refers to it; this handle does.
      input.reset();
      const auto& shape = run.shapes.back();
      int forwarded = -1;
      output.reset(api().TF_ForwardInputOrAllocateOutput(run.context, &i, 1, i, shape.data(),
                                                         static_cast<int>(shape.size()), &forwarded,
                                                         status.get()));
      if (status.ok() && forwarded < 0) {
        api().TF_GetInput(run.context, i, &in, status.get());
        input.reset(in);
      }
    }
  }
  if (!status.ok()) {
    api().TF_OpKernelContext_Failure(run.context, status.get());
    return false;
  }
  RuedaTensor& tensor = run.tensors.back();
  if (output) tensor.out = api().TF_TensorData(output.get());
  tensor.in = input ? api().TF_TensorData(input.get()) : tensor.out;
  run.inputs.push_back(std::move(input));
  run.outputs.push_back(std::move(output));
  return true;
}

/// Alltoall: what goes to whom, and where the answer goes.
bool prepare_splits(Run& run, std::int32_t members) {
  Status status;
  TF_Tensor* given = nullptr;
  api().TF_GetInput(run.context, 1, &given, status.get());
  const Tensor splits(given);
  if (status.ok()) {
    if (api().TF_NumDims(given) > 1) {
      run.fail(kInvalidArgument, "splits must have one dimension, one number for each member");
      return false;
    }
    const auto* numbers = static_cast<const std::int32_t*>(api().TF_TensorData(given));
    const std::size_t count = api().TF_TensorByteSize(given) / sizeof(std::int32_t);
    run.splits.assign(numbers, numbers + count);
    const std::int64_t shape = members;
    run.received.reset(api().TF_AllocateOutput(
        run.context, 1, kInt32, &shape, 1, static_cast<std::size_t>(members) * sizeof(std::int32_t),
        status.get()));
  }
  if (!status.ok()) {
    api().TF_OpKernelContext_Failure(run.context, status.get());
    return false;
  }
  RuedaTensor& tensor = run.tensors.front();
  if (!run.splits.empty()) {
    tensor.splits = run.splits.data();
    tensor.members = static_cast<std::int32_t>(run.splits.size());
  }
  tensor.received = static_cast<std::int32_t*>(api().TF_TensorData(run.received.get()));
  return true;
}

/// False: the run has failed, and its status says why.
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
    for (int i = 0; i < inputs; ++i) {
      if (!prepare(run, i)) return false;
    }
    for (std::size_t i = 0; i < run.tensors.size(); ++i)
      run.tensors[i].shape = run.shapes[i].data();
    if (kernel.kind == Kind::Alltoall && !prepare_splits(run, members)) return false;
  }
  const RuedaRequest request{.kind = static_cast<std::int32_t>(kernel.kind),
                             .op = kernel.op,
                             .name = kernel.name.c_str(),
                             .prescale = kernel.prescale,
                             .postscale = kernel.postscale,
                             .root = kernel.root,
                             .process_set = kernel.process_set,
                             .grouped = kernel.grouped,
                             .count = static_cast<std::int32_t>(run.tensors.size()),
                             .tensors = run.tensors.data(),
                             .allocate = allocate,
                             .done = done,
                             .context = &run};
  RuedaOutcome refused{};
  if (world->api->submit(world->engine, &request, &refused) == 0) return true;
  run.fail(code_of(refused.code), refused.message);
  return false;
}

/// Asynchronous kernels.
void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* completed) {
  auto* run = new Run(*static_cast<const Kernel*>(kernel), context, completed);
  const bool kept = run->continuation.kept();
  if (!submit(*run)) end(run);
  if (kept) return;  // `run` is the callback's, and may be gone
  run->continuation.await();
  delete run;
}

using Question = std::int32_t (*)(const CurrentWorld::Use& world, std::int32_t process_set);

/// Kernels that answer at once.
template <Question ask>
void answer(void* kernel, TF_OpKernelContext* context) {
  const CurrentWorld::Use world(current());
  if (!world) {
    Status status;
    status.set(kFailedPrecondition, kNotInitialized);
    api().TF_OpKernelContext_Failure(context, status.get());
    return;
  }
  set_scalar(context, ask(world, static_cast<const Kernel*>(kernel)->process_set));
}

std::int32_t rank(const CurrentWorld::Use& world, std::int32_t) { return world->rank; }
std::int32_t local_rank(const CurrentWorld::Use& world, std::int32_t) { return world->local_rank; }
std::int32_t local_size(const CurrentWorld::Use& world, std::int32_t) { return world->local_size; }

constexpr std::int32_t kUnknownSet = -3;

std::int32_t size(const CurrentWorld::Use& world, std::int32_t process_set) {
  std::int32_t members = 0;
  std::int32_t own = -1;
  const bool unknown = world->api->process_set(world->engine, process_set, &members, &own) != 0;
  return unknown ? kUnknownSet : members;
}

std::int32_t included(const CurrentWorld::Use& world, std::int32_t process_set) {
  std::int32_t members = 0;
  std::int32_t own = -1;
  const bool unknown = world->api->process_set(world->engine, process_set, &members, &own) != 0;
  return unknown ? kUnknownSet : static_cast<std::int32_t>(own >= 0);
}

// -- shapes -------------------------------------------------------------------------------------

struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { api().TF_DeleteShapeHandle(shape); }
};
using ShapeHandle = std::unique_ptr<TF_ShapeHandle, DeleteShape>;
using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

bool fine(const TF_Status* status) { return api().TF_GetCode(status) == kOk; }

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(api().TF_NewShapeHandle());
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && fine(status); ++i) {
    api().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (fine(status)) api().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

/// How many rows come out is known when the op runs; the other dimensions stay.
void other_rows(TF_ShapeInferenceContext* context, int i, TF_Status* status) {
  const ShapeHandle shape(api().TF_NewShapeHandle());
  const ShapeHandle result(api().TF_NewShapeHandle());
  api().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
  if (fine(status) && api().TF_ShapeInferenceContextRankKnown(context, shape.get()) != 0) {
    api().TF_ShapeInferenceContextWithRankAtLeast(context, shape.get(), 1, shape.get(), status);
    if (!fine(status)) return;
    const auto dims = api().TF_ShapeInferenceContextRank(context, shape.get());
    const ShapeHandle rows(
        api().TF_ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
    api().TF_ShapeInferenceContextSubshape(context, shape.get(), 1, dims, shape.get(), status);
    if (!fine(status)) return;
    api().TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), shape.get(), result.get(),
                                                    status);
  }
  if (fine(status)) api().TF_ShapeInferenceContextSetOutput(context, i, result.get(), status);
}

void all_other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && fine(status); ++i) other_rows(context, i, status);
}

void rows_and_counts(TF_ShapeInferenceContext* context, TF_Status* status) {
  other_rows(context, 0, status);
  if (!fine(status)) return;
  const ShapeHandle counts(
      api().TF_ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
  api().TF_ShapeInferenceContextSetOutput(context, 1, counts.get(), status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(api().TF_ShapeInferenceContextScalar(context));
  api().TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

// -- registration -------------------------------------------------------------------------------

/// One type of op. Attributes beyond those that its kind always has are in `type_list`.
struct Op {
  const char* type;
  Kind kind;
  bool grouped;
  const char* dtypes;  ///< null: takes no tensors
  std::array<const char*, 2> inputs;
  std::array<const char*, 2> outputs;
  ShapeFunction shapes;
  void (*answers)(void*, TF_OpKernelContext*);  ///< null: submits to the engine
};

constexpr std::array kOps{
    Op{"HorovodAllreduce",
       Kind::Allreduce,
       false,
       kReducible,
       {"tensor: T"},
       {"sum: T"},
       same_shapes,
       nullptr},
    Op{"HorovodGroupedAllreduce",
       Kind::Allreduce,
       true,
       kReducible,
       {"tensors: num_tensors * T"},
       {"sum: num_tensors * T"},
       same_shapes,
       nullptr},
    Op{"HorovodAllgather",
       Kind::Allgather,
       false,
       kMovable,
       {"tensor: T"},
       {"output: T"},
       all_other_rows,
       nullptr},
    Op{"HorovodGroupedAllgather",
       Kind::Allgather,
       true,
       kMovable,
       {"tensors: num_tensors * T"},
       {"outputs: num_tensors * T"},
       all_other_rows,
       nullptr},
    Op{"HorovodBroadcast",
       Kind::Broadcast,
       false,
       kMovable,
       {"tensor: T"},
       {"output: T"},
       same_shapes,
       nullptr},
    Op{"HorovodReducescatter",
       Kind::Reducescatter,
       false,
       kReducible,
       {"tensor: T"},
       {"output: T"},
       all_other_rows,
       nullptr},
    Op{"HorovodGroupedReducescatter",
       Kind::Reducescatter,
       true,
       kReducible,
       {"tensors: num_tensors * T"},
       {"outputs: num_tensors * T"},
       all_other_rows,
       nullptr},
    Op{"HorovodAlltoall",
       Kind::Alltoall,
       false,
       kMovable,
       {"tensor: T", "splits: int32"},
       {"output: T", "received_splits: int32"},
       rows_and_counts,
       nullptr},
    Op{"HorovodJoin", Kind::Join, false, nullptr, {}, {"output: int32"}, scalar, nullptr},
    Op{"HorovodSize", Kind::Join, false, nullptr, {}, {"size: int32"}, scalar, answer<size>},
    Op{"HorovodProcessSetIncluded",
       Kind::Join,
       false,
       nullptr,
       {},
       {"included: int32"},
       scalar,
       answer<included>},
    Op{"HorovodLocalSize",
       Kind::Join,
       false,
       nullptr,
       {},
       {"local_size: int32"},
       scalar,
       answer<local_size>},
    Op{"HorovodRank", Kind::Join, false, nullptr, {}, {"rank: int32"}, scalar, answer<rank>},
    Op{"HorovodLocalRank",
       Kind::Join,
       false,
       nullptr,
       {},
       {"local_rank: int32"},
       scalar,
       answer<local_rank>},
};

bool reduces(const Op& op) { return op.kind == Kind::Allreduce || op.kind == Kind::Reducescatter; }

/// Attributes in the words of an op definition.
std::vector<const char*> attributes_of(const Op& op) {
  std::vector<const char*> attributes;
  if (op.dtypes != nullptr) {
    attributes = {op.dtypes, "tensor_name: string = ''", "ignore_name_scope: bool = false"};
  }
  if (op.grouped) attributes.push_back("num_tensors: int >= 1");
  if (reduces(op)) {
    attributes.push_back("reduce_op: int");
    attributes.push_back("prescale_factor: float = 1.0");
    attributes.push_back("postscale_factor: float = 1.0");
  }
  if (op.kind == Kind::Broadcast) attributes.push_back("root_rank: int");
  if (op.dtypes != nullptr || op.answers != nullptr) {
    attributes.push_back("process_set_id: int = 0");
  }
  return attributes;
}

/// Reads the attributes of a node; the first that cannot be read is the error.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* node) : node_(node) {}

  std::string text(const char* name) {
    std::int32_t list = 0;
    std::int32_t bytes = 0;
    if (status_.ok()) {
      api().TF_OpKernelConstruction_GetAttrSize(node_, name, &list, &bytes, status_.get());
    }
    std::string value(status_.ok() && bytes > 0 ? static_cast<std::size_t>(bytes) : 0, '\0');
    if (!value.empty()) {
      api().TF_OpKernelConstruction_GetAttrString(node_, name, value.data(), value.size(),
                                                  status_.get());
    }
    return value;
  }
  std::int32_t number(const char* name) {
    std::int64_t value = 0;
    if (status_.ok()) {
      api().TF_OpKernelConstruction_GetAttrInt64(node_, name, &value, status_.get());
    }
    return static_cast<std::int32_t>(value);
  }
  float factor(const char* name) {
    float value = 1.0F;
    if (status_.ok()) {
      api().TF_OpKernelConstruction_GetAttrFloat(node_, name, &value, status_.get());
    }
    return value;
  }
  bool flag(const char* name) {
    unsigned char value = 0;
    if (status_.ok()) {
      api().TF_OpKernelConstruction_GetAttrBool(node_, name, &value, status_.get());
    }
    return value != 0;
  }
  void finish() {
    if (!status_.ok()) api().TF_OpKernelConstruction_Failure(node_, status_.get());
  }

 private:
  TF_OpKernelConstruction* node_;
  Status status_;
};

template <std::size_t index>
void* create(TF_OpKernelConstruction* node) {
  constexpr const Op& op = kOps[index];
  auto kernel = std::make_unique<Kernel>();
  kernel->type = op.type;
  kernel->kind = op.kind;
  kernel->grouped = op.grouped;
  Attributes attributes(node);
  const TF_StringView node_name = api().TF_OpKernelConstruction_GetName(node);
  kernel->name.assign(node_name.data, node_name.len);
  if (op.dtypes != nullptr) {
    if (auto given = attributes.text("tensor_name"); !given.empty()) kernel->name = given;
    if (attributes.flag("ignore_name_scope")) {
      kernel->name.erase(0, kernel->name.rfind('/') + 1);
    }
  }
  if (reduces(op)) {
    kernel->op = attributes.number("reduce_op");
    kernel->prescale = attributes.factor("prescale_factor");
    kernel->postscale = attributes.factor("postscale_factor");
  }
  if (op.kind == Kind::Broadcast) kernel->root = attributes.number("root_rank");
  if (op.dtypes != nullptr || op.answers != nullptr) {
    kernel->process_set = attributes.number("process_set_id");
  }
  attributes.finish();
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

/// "tensors" of "tensors: num_tensors * T".
std::string argument(const char* declaration) {
  const std::string_view all(declaration);
  return std::string(all.substr(0, all.find(':')));
}

void define(const Op& op, TF_Status* status) {
  auto* builder = api().TF_NewOpDefinitionBuilder(op.type);
  for (const char* attribute : attributes_of(op)) {
    api().TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  for (const char* input : op.inputs) {
    if (input != nullptr) api().TF_OpDefinitionBuilderAddInput(builder, input);
  }
  for (const char* output : op.outputs) {
    if (output != nullptr) api().TF_OpDefinitionBuilderAddOutput(builder, output);
  }
  // Neither dropped when nobody uses the result, nor merged with an equal one, nor run when the
  // graph is optimised: other ranks count on it.
  api().TF_OpDefinitionBuilderSetIsStateful(builder, true);
  api().TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  api().TF_RegisterOpDefinition(builder, status);
}

/// On a GPU TensorFlow brings the tensors to the host and back, in the order of its streams: its C
/// API gives kernels no stream.
template <std::size_t index>
void add_kernel(const char* device, TF_Status* status) {
  constexpr const Op& op = kOps[index];
  auto* builder =
      op.answers != nullptr
          ? api().TF_NewKernelBuilder(op.type, device, create<index>, op.answers, destroy)
          : api().TF_NewAsyncKernelBuilder(op.type, device, create<index>, compute, destroy);
  if (std::string_view(device) != "CPU") {
    for (const auto& arguments : {op.inputs, op.outputs}) {
      for (const char* declared : arguments) {
        if (declared != nullptr) {
          api().TF_KernelBuilder_HostMemory(builder, argument(declared).c_str());
        }
      }
    }
  }
  api().TF_RegisterKernelBuilder(op.type, builder, status);
}

template <std::size_t index>
void add(Status& status) {
  if (status.ok()) define(kOps[index], status.get());
  for (const char* device : {"CPU", "GPU"}) {
    if (status.ok()) add_kernel<index>(device, status.get());
  }
}

/// What is wrong; empty: all ops are there.
std::string add_all() {
  if (*api().missing != '\0') return std::string(api().missing) + " is missing";
  Status status;
  [&]<std::size_t... index>(std::index_sequence<index...>) {
    (add<index>(status), ...);
  }(std::make_index_sequence<kOps.size()>());
  return status.ok() ? std::string() : api().TF_Message(status.get());
}

// TensorFlow collects the ops that appear while it loads this object.
const std::string& problem() {
  static const auto& found = *new std::string(add_all());
  return found;
}
const bool kAdded = problem().empty();

}  // namespace

#define RUEDA_EXPORT __attribute__((visibility("default")))

extern "C" {

/// What is wrong with this TensorFlow; empty: all ops are there.
RUEDA_EXPORT const char* rueda_tf_problem() { return problem().c_str(); }

/// From now on kernels submit to that engine. 0, or 1: it speaks another version of the table.
RUEDA_EXPORT int rueda_tf_enter(const void* table, void* engine, std::int32_t rank,
                                std::int32_t size, std::int32_t local_rank,
                                std::int32_t local_size) {
  const auto* functions = static_cast<const RuedaApi*>(table);
  if (functions->version != kApiVersion) return 1;
  current().enter({.api = functions,
                   .engine = engine,
                   .rank = rank,
                   .size = size,
                   .local_rank = local_rank,
                   .local_size = local_size});
  return 0;
}

/// Returns when no kernel uses the engine any more; operations under way go on.
RUEDA_EXPORT void rueda_tf_leave() { current().leave(); }
}

}  // namespace rueda::tf

/// The collectives as TensorFlow ops: their names, inputs and outputs, and their registration.
///
/// An op's identity across ranks is `tensor_name`, or else the name of its node. Eager nodes have
/// the name of their type; they are matched by the order of calls, which eager execution keeps.

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glue/tensorflow_kernels.h"
#include "glue/tensorflow_values.h"

namespace farandole::tf {

namespace {

using glue::CurrentWorld;

// --- shapes of results, as far as they are known when a graph is built ---

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

bool fine(const TF_Status* status) { return api().TF_GetCode(status) == kOk; }

/// The number of rows is known when the op runs; the other dimensions stay.
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

/// Each output has the shape of its input.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(api().TF_NewShapeHandle());
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && fine(status); ++i) {
    api().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (fine(status)) api().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

/// Each output is its input with another number of rows.
void all_other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && fine(status); ++i) other_rows(context, i, status);
}

/// Of an alltoall: rows, and how many came from each member.
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

// --- ops ---

constexpr const char* kReducible =
    "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}";
constexpr const char* kMovable =
    "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool, uint32, "
    "uint64, complex64, complex128}";

template <Question ask>
void answer_with(void* kernel, TF_OpKernelContext* context) {
  answer(*static_cast<const Kernel*>(kernel), context, ask);
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

/// What a kind takes besides tensors.
enum Takes : unsigned { kNothing = 0, kReduction = 1, kRoot = 2 };

/// One type of op; its attributes follow from the rest, see attributes_of().
struct Op {
  const char* type;
  Kind kind;
  unsigned takes;  ///< of Takes
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
       kReduction,
       false,
       kReducible,
       {"tensor: T"},
       {"sum: T"},
       same_shapes,
       nullptr},
    Op{"HorovodGroupedAllreduce",
       Kind::Allreduce,
       kReduction,
       true,
       kReducible,
       {"tensors: num_tensors * T"},
       {"sum: num_tensors * T"},
       same_shapes,
       nullptr},
    Op{"HorovodAllgather",
       Kind::Allgather,
       kNothing,
       false,
       kMovable,
       {"tensor: T"},
       {"output: T"},
       all_other_rows,
       nullptr},
    Op{"HorovodGroupedAllgather",
       Kind::Allgather,
       kNothing,
       true,
       kMovable,
       {"tensors: num_tensors * T"},
       {"outputs: num_tensors * T"},
       all_other_rows,
       nullptr},
    Op{"HorovodBroadcast",
       Kind::Broadcast,
       kRoot,
       false,
       kMovable,
       {"tensor: T"},
       {"output: T"},
       same_shapes,
       nullptr},
    Op{"HorovodReduce",
       Kind::Reduce,
       kReduction | kRoot,
       false,
       kReducible,
       {"tensor: T"},
       {"output: T"},
       same_shapes,
       nullptr},
    Op{"HorovodGroupedReduce",
       Kind::Reduce,
       kReduction | kRoot,
       true,
       kReducible,
       {"tensors: num_tensors * T"},
       {"outputs: num_tensors * T"},
       same_shapes,
       nullptr},
    Op{"HorovodReducescatter",
       Kind::Reducescatter,
       kReduction,
       false,
       kReducible,
       {"tensor: T"},
       {"output: T"},
       all_other_rows,
       nullptr},
    Op{"HorovodGroupedReducescatter",
       Kind::Reducescatter,
       kReduction,
       true,
       kReducible,
       {"tensors: num_tensors * T"},
       {"outputs: num_tensors * T"},
       all_other_rows,
       nullptr},
    Op{"HorovodAlltoall",
       Kind::Alltoall,
       kNothing,
       false,
       kMovable,
       {"tensor: T", "splits: int32"},
       {"output: T", "received_splits: int32"},
       rows_and_counts,
       nullptr},
    Op{"HorovodJoin", Kind::Join, kNothing, false, nullptr, {}, {"output: int32"}, scalar, nullptr},
    Op{"HorovodSize",
       Kind::Join,
       kNothing,
       false,
       nullptr,
       {},
       {"size: int32"},
       scalar,
       answer_with<size>},
    Op{"HorovodProcessSetIncluded",
       Kind::Join,
       kNothing,
       false,
       nullptr,
       {},
       {"included: int32"},
       scalar,
       answer_with<included>},
    Op{"HorovodLocalSize",
       Kind::Join,
       kNothing,
       false,
       nullptr,
       {},
       {"local_size: int32"},
       scalar,
       answer_with<local_size>},
    Op{"HorovodRank",
       Kind::Join,
       kNothing,
       false,
       nullptr,
       {},
       {"rank: int32"},
       scalar,
       answer_with<rank>},
    Op{"HorovodLocalRank",
       Kind::Join,
       kNothing,
       false,
       nullptr,
       {},
       {"local_rank: int32"},
       scalar,
       answer_with<local_rank>},
};

/// Attributes in the words of an op definition.
std::vector<const char*> attributes_of(const Op& op) {
  std::vector<const char*> attributes;
  if (op.dtypes != nullptr) {
    attributes = {op.dtypes, "tensor_name: string = ''", "ignore_name_scope: bool = false"};
  }
  if (op.grouped) attributes.push_back("num_tensors: int >= 1");
  if ((op.takes & kReduction) != 0) {
    attributes.push_back("reduce_op: int");
    attributes.push_back("prescale_factor: float = 1.0");
    attributes.push_back("postscale_factor: float = 1.0");
  }
  if ((op.takes & kRoot) != 0) attributes.push_back("root_rank: int");
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
  kernel->in_place = op.shapes == same_shapes;
  Attributes attributes(node);
  const TF_StringView node_name = api().TF_OpKernelConstruction_GetName(node);
  kernel->name.assign(node_name.data, node_name.len);
  if (op.dtypes != nullptr) {
    if (auto given = attributes.text("tensor_name"); !given.empty()) kernel->name = given;
    if (attributes.flag("ignore_name_scope")) {
      kernel->name.erase(0, kernel->name.rfind('/') + 1);
    }
  }
  if ((op.takes & kReduction) != 0) {
    kernel->op = attributes.number("reduce_op");
    kernel->prescale = attributes.factor("prescale_factor");
    kernel->postscale = attributes.factor("postscale_factor");
  }
  if ((op.takes & kRoot) != 0) kernel->root = attributes.number("root_rank");
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
  // TensorFlow must not drop an op whose result nobody uses, merge it with an equal one, or run it
  // while it optimises the graph: other ranks wait for it.
  api().TF_OpDefinitionBuilderSetIsStateful(builder, true);
  api().TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  api().TF_RegisterOpDefinition(builder, status);
}

/// On a GPU TensorFlow copies the tensors to the host and back, in the order of its streams. Its C
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

#define FARANDOLE_EXPORT __attribute__((visibility("default")))

extern "C" {

/// What is wrong with this TensorFlow; empty: all ops are there.
FARANDOLE_EXPORT const char* farandole_tf_problem() { return problem().c_str(); }

/// From now on kernels submit to that engine. 0, or 1: it speaks another version of the table.
FARANDOLE_EXPORT int farandole_tf_enter(const void* table, void* engine, std::int32_t rank,
                                        std::int32_t size, std::int32_t local_rank,
                                        std::int32_t local_size) {
  const auto* functions = static_cast<const FarandoleApi*>(table);
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
FARANDOLE_EXPORT void farandole_tf_leave() { current().leave(); }
}

}  // namespace farandole::tf

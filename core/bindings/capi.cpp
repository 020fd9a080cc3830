#include "bindings/capi.h"

#include <algorithm>
#include <string>

#include "collectives/registry.h"
#include "engine/engine.h"

namespace rueda {

namespace {

/// The texts of the last refused submission of this thread: the caller reads them at once.
struct Refusal {
  std::string code;
  std::string message;
};

constexpr std::int32_t kMostDimensions = 64;  // as on the wire

/// The first number of `request` that stands for nothing; empty if there is none. Enumerations are
/// indices into tables, so they are checked before they become any.
std::string nonsense_in(const RuedaRequest& request) {
  const auto is = [](std::string what, std::int64_t number) {
    return what + " " + std::to_string(number) + " means nothing";
  };
  if (request.kind < 0 || request.kind >= kKinds) {
    return is("kind", request.kind);
  }
  if (request.op < 0 || request.op > static_cast<std::int32_t>(ReduceOp::Product)) {
    return is("op", request.op);
  }
  if (request.done == nullptr) return "a request without a callback";
  if (request.kind == static_cast<std::int32_t>(Kind::Join)) return {};
  if (request.count < 1) return is("a count of tensors of", request.count);
  for (std::int32_t i = 0; i < request.count; ++i) {
    const RuedaTensor& tensor = request.tensors[i];
    if (tensor.dtype < 0 || tensor.dtype >= static_cast<std::int32_t>(kDTypes)) {
      return is("dtype", tensor.dtype);
    }
    if (tensor.dims < 0 || tensor.dims > kMostDimensions) {
      return is("a number of dimensions of", tensor.dims);
    }
    for (std::int32_t d = 0; d < tensor.dims; ++d) {
      if (tensor.shape[d] < 0) return is("an extent of", tensor.shape[d]);
    }
    if (tensor.members < 0) return is("a number of members of", tensor.members);
  }
  return {};
}

/// `outcome` gets the reason; its texts live until the next refusal on this thread.
std::int32_t refuse(const Error& error, RuedaOutcome* outcome) {
  thread_local Refusal refusal;
  refusal.code = name_of(error.code);
  refusal.message = error.what();
  *outcome = {.code = refusal.code.c_str(),
              .message = refusal.message.c_str(),
              .rank = error.peer,
              .value = 0,
              .in_use = 0};
  return kRefused;
}

/// Into `mine`, whose memory is used again.
void read(const RuedaRequest& request, Request& mine) {
  mine.kind = static_cast<Kind>(request.kind);
  mine.op = static_cast<ReduceOp>(request.op);
  mine.name.assign(request.name != nullptr ? request.name : "");
  mine.prescale = request.prescale;
  mine.postscale = request.postscale;
  mine.root = request.root;
  mine.process_set = request.process_set;
  mine.grouped = request.grouped != 0;
  mine.demanded = true;  // a graph goes on when it is done; other parts of it may go on before
  mine.call = 0;
  mine.tensors.resize(static_cast<std::size_t>(request.count));
  for (std::size_t i = 0; i < mine.tensors.size(); ++i) {
    const RuedaTensor& tensor = request.tensors[i];
    TensorRequest& to = mine.tensors[i];
    to.dtype = static_cast<DType>(tensor.dtype);
    to.shape.assign(tensor.shape, tensor.shape + tensor.dims);
    to.in = static_cast<const std::byte*>(tensor.in);
    to.out = static_cast<std::byte*>(tensor.out);
    to.splits.clear();
    if (tensor.splits != nullptr) to.splits.assign(tensor.splits, tensor.splits + tensor.members);
    to.received = tensor.received;
  }
  mine.provide = nullptr;
  if (request.allocate != nullptr) {
    mine.provide = [allocate = request.allocate, context = request.context](
                       std::size_t index, const Shape& shape, DType) {
      return static_cast<std::byte*>(allocate(context, static_cast<std::int32_t>(index),
                                              shape.data(),
                                              static_cast<std::int32_t>(shape.size())));
    };
  }
}

std::int32_t submit(void* engine, const RuedaRequest* request, RuedaOutcome* outcome) {
  if (auto wrong = nonsense_in(*request); !wrong.empty()) {
    return refuse({.code = Code::InvalidArgument, .message = std::move(wrong)}, outcome);
  }
  auto on_done = [done = request->done, context = request->context](const Work& work) {
    RuedaOutcome end{.code = nullptr,
                     .message = nullptr,
                     .rank = -1,
                     .value = work.value.value_or(0),
                     .in_use = work.in_use ? 1 : 0};
    std::string code;
    std::string message;
    if (work.error) {
      code = name_of(work.error->code);
      message = work.error->what();
      end.code = code.c_str();
      end.message = message.c_str();
      end.rank = work.error->peer;
    }
    done(context, &end);
  };
  auto* mine_engine = static_cast<Engine*>(engine);
  const auto handle = [&]() -> Result<Handle> {
    if (request->kind == static_cast<std::int32_t>(Kind::Join)) {
      return mine_engine->join(std::move(on_done));
    }
    thread_local Request mine;
    read(*request, mine);
    mine.on_done = std::move(on_done);
    return mine_engine->launch(mine);
  }();
  if (!handle) return refuse(handle.error(), outcome);
  if (*handle == 0) return kOver;
  mine_engine->take(*handle);  // the callback is all there is
  return kUnderWay;
}

std::int32_t process_set(void* engine, std::int32_t number, std::int32_t* size,
                         std::int32_t* rank) {
  const auto* mine = static_cast<Engine*>(engine);
  const auto sets = mine->process_sets();
  const auto found = sets.find(number);
  if (found == sets.end()) return 1;
  *size = static_cast<std::int32_t>(found->second.size());
  *rank = -1;
  const auto at = std::ranges::find(found->second, mine->rank());
  if (at != found->second.end()) {
    *rank = static_cast<std::int32_t>(at - found->second.begin());
  }
  return 0;
}

constexpr RuedaApi kApi{.version = kApiVersion,
                        .bytes = sizeof(RuedaApi),
                        .submit = submit,
                        .process_set = process_set};

}  // namespace

const RuedaApi* capi_table() noexcept { return &kApi; }

}  // namespace rueda

#include "bindings/capi.h"

#include <string>

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
  if (request.kind < 0 || request.kind > static_cast<std::int32_t>(Kind::RemoveProcessSet)) {
    return is("kind", request.kind);
  }
  if (request.op < 0 || request.op > static_cast<std::int32_t>(ReduceOp::Product)) {
    return is("op", request.op);
  }
  if (request.count < 1) return is("a count of tensors of", request.count);
  if (request.done == nullptr) return "a request without a callback";
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
  }
  return {};
}

/// `outcome` gets the reason; its texts live until the next refusal on this thread.
std::int32_t refuse(const Error& error, RuedaOutcome* outcome) {
  thread_local Refusal refusal;
  refusal.code = name_of(error.code);
  refusal.message = error.what();
  *outcome = {.code = refusal.code.c_str(), .message = refusal.message.c_str(), .rank = error.peer};
  return 1;
}

std::int32_t submit(void* engine, const RuedaRequest* request, RuedaOutcome* outcome) {
  if (auto wrong = nonsense_in(*request); !wrong.empty()) {
    return refuse({.code = Code::InvalidArgument, .message = std::move(wrong)}, outcome);
  }
  Request mine;
  mine.kind = static_cast<Kind>(request->kind);
  mine.op = static_cast<ReduceOp>(request->op);
  if (request->name != nullptr) mine.name = request->name;
  mine.prescale = request->prescale;
  mine.postscale = request->postscale;
  mine.root = request->root;
  mine.process_set = request->process_set;
  mine.grouped = request->count > 1;
  mine.demanded = true;  // a graph goes on when it is done; other parts of it may go on before
  for (std::int32_t i = 0; i < request->count; ++i) {
    const RuedaTensor& tensor = request->tensors[i];
    mine.tensors.push_back({.dtype = static_cast<DType>(tensor.dtype),
                            .shape = Shape(tensor.shape, tensor.shape + tensor.dims),
                            .in = static_cast<const std::byte*>(tensor.in),
                            .out = static_cast<std::byte*>(tensor.out)});
  }
  mine.on_done = [done = request->done, context = request->context](const Work& work) {
    RuedaOutcome end{.code = nullptr, .message = nullptr, .rank = -1};
    std::string code;
    std::string message;
    if (work.error) {
      code = name_of(work.error->code);
      message = work.error->what();
      end = {.code = code.c_str(), .message = message.c_str(), .rank = work.error->peer};
    }
    done(context, &end);
  };
  auto handle = static_cast<Engine*>(engine)->submit(std::move(mine));
  if (handle) {
    // Nobody takes it: the callback is all there is.
    static_cast<Engine*>(engine)->take(*handle);
    return 0;
  }
  return refuse(handle.error(), outcome);
}

constexpr RuedaApi kApi{.version = kApiVersion, .bytes = sizeof(RuedaApi), .submit = submit};

}  // namespace

const RuedaApi* capi_table() noexcept { return &kApi; }

}  // namespace rueda

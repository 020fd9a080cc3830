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

std::int32_t submit(void* engine, const RuedaRequest* request, RuedaOutcome* outcome) {
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
  thread_local Refusal refusal;
  refusal.code = name_of(handle.error().code);
  refusal.message = handle.error().what();
  *outcome = {.code = refusal.code.c_str(),
              .message = refusal.message.c_str(),
              .rank = handle.error().peer};
  return 1;
}

constexpr RuedaApi kApi{.version = kApiVersion, .bytes = sizeof(RuedaApi), .submit = submit};

}  // namespace

const RuedaApi* capi_table() noexcept { return &kApi; }

}  // namespace rueda

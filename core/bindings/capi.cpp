#include "bindings/capi.h"

#include <algorithm>
#include <string>

#include "bindings/numbers.h"
#include "collectives/registry.h"
#include "engine/engine.h"

namespace farandole {

namespace {

/// The texts of the last refused submission of this thread: the caller reads them at once.
struct Refusal {
  std::string code;
  std::string message;
};

/// The first number of `submission` that stands for nothing; empty if there is none.
std::string nonsense_in(const FarandoleSubmission& submission) {
  using bindings::is_below;
  using bindings::kMostDimensions;
  using bindings::means_nothing;
  if (!is_below(kKinds, submission.kind)) return means_nothing("kind", submission.kind);
  if (!is_below(kReduceOps, submission.op)) return means_nothing("op", submission.op);
  if (submission.mode != static_cast<std::int32_t>(Mode::Callback)) {
    return means_nothing("mode", submission.mode) + " here: the end comes by a callback";
  }
  if (submission.done == nullptr) return "a submission without a callback";
  const bool none = rules_of(static_cast<Kind>(submission.kind)).without_tensors;
  if (submission.count < (none ? 0 : 1)) {
    return means_nothing("a count of tensors of", submission.count);
  }
  for (std::int32_t i = 0; i < submission.count; ++i) {
    const FarandoleTensor& tensor = submission.tensors[i];
    if (!is_below(kDTypes, tensor.dtype)) return means_nothing("dtype", tensor.dtype);
    if (!is_below(kDevices, tensor.device)) return means_nothing("device", tensor.device);
    if (!is_below(kMostDimensions + 1, tensor.dims)) {
      return means_nothing("a number of dimensions of", tensor.dims);
    }
    for (std::int32_t d = 0; d < tensor.dims; ++d) {
      if (tensor.shape[d] < 0) return means_nothing("an extent of", tensor.shape[d]);
    }
    if (tensor.members < 0) return means_nothing("a number of members of", tensor.members);
  }
  return {};
}

/// `outcome` gets the reason; its texts live until the next refusal on this thread.
std::int32_t refuse(const Error& error, FarandoleOutcome* outcome) {
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
void read(const FarandoleSubmission& submission, Submission& mine) {
  mine.kind = static_cast<Kind>(submission.kind);
  mine.op = static_cast<ReduceOp>(submission.op);
  mine.name.assign(submission.name != nullptr ? submission.name : "");
  mine.prescale = submission.prescale;
  mine.postscale = submission.postscale;
  mine.root = submission.root;
  mine.process_set = submission.process_set;
  mine.mode = static_cast<Mode>(submission.mode);
  mine.grouped = submission.grouped != 0;
  mine.call = 0;
  mine.tensors.resize(static_cast<std::size_t>(submission.count));
  for (std::size_t i = 0; i < mine.tensors.size(); ++i) {
    const FarandoleTensor& tensor = submission.tensors[i];
    Tensor& to = mine.tensors[i];
    to.in = static_cast<const std::byte*>(tensor.in);
    to.out = static_cast<std::byte*>(tensor.out);
    to.dtype = static_cast<DType>(tensor.dtype);
    to.shape.assign(tensor.shape, tensor.shape + tensor.dims);
    to.device = static_cast<Device>(tensor.device);
    to.device_index = tensor.device_index;
    to.stream = tensor.stream;
    to.splits.clear();
    if (tensor.splits != nullptr) to.splits.assign(tensor.splits, tensor.splits + tensor.members);
    to.received = tensor.received;
  }
  mine.provide = nullptr;
  if (submission.allocate != nullptr) {
    mine.provide = [allocate = submission.allocate, context = submission.context](
                       std::size_t index, const Shape& shape, DType) {
      return static_cast<std::byte*>(allocate(context, static_cast<std::int32_t>(index),
                                              shape.data(),
                                              static_cast<std::int32_t>(shape.size())));
    };
  }
  mine.on_done = [done = submission.done, context = submission.context](const Work& work) {
    FarandoleOutcome end{.code = nullptr,
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
}

std::int32_t submit(void* engine, const FarandoleSubmission* submission,
                    FarandoleOutcome* outcome) {
  if (auto wrong = nonsense_in(*submission); !wrong.empty()) {
    return refuse({.code = Code::InvalidArgument, .message = std::move(wrong)}, outcome);
  }
  auto* mine_engine = static_cast<Engine*>(engine);
  thread_local Submission mine;
  read(*submission, mine);
  const auto handle = mine_engine->submit(std::move(mine));
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

constexpr FarandoleApi kApi{.version = kApiVersion,
                            .bytes = sizeof(FarandoleApi),
                            .submit = submit,
                            .process_set = process_set};

}  // namespace

const FarandoleApi* capi_table() noexcept { return &kApi; }

}  // namespace farandole

// Primary contexts and the stack of each thread.
#include "cuda/entry.h"

using namespace farandole;         // NOLINT: the functions below have C names
using namespace farandole::fakes;  // NOLINT

FAKE_CUDA_API DriverStatus cuDevicePrimaryCtxRetain(DriverContext* context, DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDevicePrimaryCtxRetain">(Needs::Start));
  Context* found = Devices::get().context(device);
  if (found == nullptr) return kInvalidDevice;
  found->retain();
  *context = handle_of<DriverContext>(found);
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDevicePrimaryCtxRelease_v2(DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDevicePrimaryCtxRelease">(Needs::Start));
  Context* found = Devices::get().context(device);
  if (found == nullptr) return kInvalidDevice;
  return found->release() ? kDriverSuccess : kInvalidContext;
}

FAKE_CUDA_API DriverStatus cuCtxPushCurrent_v2(DriverContext context) {
  FAKE_CUDA_TRY(enter<"cuCtxPushCurrent">(Needs::Start));
  Context* found = Devices::get().find(context);
  if (found == nullptr) return kInvalidContext;
  context_stack().push_back(found);
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuCtxPopCurrent_v2(DriverContext* context) {
  FAKE_CUDA_TRY(enter<"cuCtxPopCurrent">(Needs::Start));
  if (context_stack().empty()) return kInvalidContext;
  if (context != nullptr) *context = handle_of<DriverContext>(context_stack().back());
  context_stack().pop_back();
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuCtxGetCurrent(DriverContext* context) {
  FAKE_CUDA_TRY(enter<"cuCtxGetCurrent">(Needs::Start));
  const auto& stack = context_stack();
  *context = stack.empty() ? nullptr : handle_of<DriverContext>(stack.back());
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuCtxSetCurrent(DriverContext context) {
  FAKE_CUDA_TRY(enter<"cuCtxSetCurrent">(Needs::Start));
  auto& stack = context_stack();
  Context* found = Devices::get().find(context);
  if (context != nullptr && found == nullptr) return kInvalidContext;
  if (!stack.empty()) stack.pop_back();
  if (found != nullptr) stack.push_back(found);
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuCtxGetDevice(DriverDevice* device) {
  FAKE_CUDA_TRY(enter<"cuCtxGetDevice">(Needs::Context));
  *device = current().device();
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuCtxSynchronize() {
  FAKE_CUDA_TRY(enter<"cuCtxSynchronize">(Needs::Context));
  current().synchronize();
  return current().broken();
}

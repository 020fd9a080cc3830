/// How an asynchronous kernel tells TensorFlow that its op is over.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <optional>
#include <semaphore>

#include "glue/libstdcxx_function.h"
#include "glue/tensorflow_api.h"

namespace farandole::tf {

/// TensorFlow's continuation of an op.
///
/// TensorFlow passes the address of a std::function<void()>, which is a parameter of its own caller
/// and dies when the kernel returns. So a copy is kept. Nothing else here relies on more than the C
/// API, so the first function is checked. If it is not what it was in every release so far, kernels
/// wait for the end of their operation instead, which is slower.
class Continuation {
 public:
  explicit Continuation(TF_AsyncOpKernelDoneCallback* done) : given_(done) {
    if (can_keep(done)) kept_.emplace(*reinterpret_cast<const LibstdcxxFunction*>(done));
  }
  [[nodiscard]] bool kept() const { return kept_.has_value(); }

  /// Ends the op. Its context is gone afterwards.
  void run() {
    if (kept_) {
      api().TF_RunAsyncOpKernelDoneCallback(
          reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&*kept_));
    } else {
      ended_.release();
    }
  }

  /// For a kernel whose continuation was not kept. It waits, and still has the original.
  void await() {
    ended_.acquire();
    api().TF_RunAsyncOpKernelDoneCallback(given_);
  }

 private:
  /// Whether the words of what is given point into TensorFlow, as those of a function of its do.
  /// Asked once: each look-up takes a quarter of a millisecond in a library that big.
  static bool can_keep(const void* done) {
    static const bool can = [done] {
      const auto& given = *static_cast<const LibstdcxxFunction*>(done);
      for (const void* code : {given.manager(), given.invoker()}) {
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
  std::optional<LibstdcxxFunction> kept_;
  std::binary_semaphore ended_{0};
};

}  // namespace farandole::tf

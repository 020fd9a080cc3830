#include "backends/nccl/library.h"

#include <dlfcn.h>

#include <utility>

namespace farandole {

namespace {

constexpr const char* kName = "libnccl.so.2";

Error unusable(std::string why) {
  return Error{.code = Code::Unsupported, .message = std::move(why)};
}

Result<void*> find(const std::string& file) {
  if (void* const loaded = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return loaded;
  const char* const wanted = file.empty() ? kName : file.c_str();
  if (void* const found = ::dlopen(wanted, RTLD_NOW | RTLD_LOCAL)) return found;
  const char* const why = ::dlerror();
  return unusable("NCCL cannot be loaded: " + std::string(why != nullptr ? why : wanted));
}

std::string file_of(void* symbol) {
  Dl_info info{};
  return ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kName;
}

}  // namespace

std::string nccl_version(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

Result<std::shared_ptr<const NcclLibrary>> load_nccl(const std::string& file) {
  auto handle = find(file);
  if (!handle) return std::move(handle).error();
  auto library = std::make_shared<NcclLibrary>();
  const char* missing = nullptr;
#define FARANDOLE_FIND(name, symbol, arguments)                                        \
  library->name = reinterpret_cast<NcclStatus(*) arguments>(::dlsym(*handle, symbol)); \
  if (library->name == nullptr && missing == nullptr) missing = symbol;
  FARANDOLE_NCCL_FUNCTIONS(FARANDOLE_FIND)
#undef FARANDOLE_FIND
  library->error_text =
      reinterpret_cast<const char* (*)(NcclStatus)>(::dlsym(*handle, "ncclGetErrorString"));
  library->last_error =
      reinterpret_cast<const char* (*)(NcclComm)>(::dlsym(*handle, "ncclGetLastError"));
  if (library->version == nullptr) return unusable("the library that was found is not NCCL");
  library->file = file_of(reinterpret_cast<void*>(library->version));
  if (library->version(&library->version_code) != kNcclSuccess) {
    return unusable(library->file + " does not say its version");
  }
  if (library->version_code < kNcclOldest || missing != nullptr) {
    return unusable("NCCL " + nccl_version(library->version_code) + " from " + library->file +
                    " is too old: " + nccl_version(kNcclOldest) + " or newer is needed");
  }
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

std::optional<int> nccl_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::Int8:
      return 0;
    case DType::UInt8:
      return 1;
    case DType::Int32:
      return 2;
    case DType::Int64:
      return 4;
    case DType::Float16:
      return 6;
    case DType::Float32:
      return 7;
    case DType::Float64:
      return 8;
    case DType::BFloat16:
      return 9;
    case DType::UInt16:
    case DType::Int16:
    case DType::Bool:
    case DType::UInt32:
    case DType::UInt64:
    case DType::Complex64:
    case DType::Complex128:
    case DType::Float8E4M3FN:
    case DType::Float8E5M2:
    case DType::Float8E4M3FNUZ:
    case DType::Float8E5M2FNUZ:
      break;
  }
  return std::nullopt;
}

std::optional<int> nccl_op(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::Sum:
      return kNcclSum;
    case ReduceOp::Product:
      return 1;
    case ReduceOp::Max:
      return 2;
    case ReduceOp::Min:
      return 3;
    case ReduceOp::Average:
    case ReduceOp::Adasum:
      break;
  }
  return std::nullopt;
}

}  // namespace farandole

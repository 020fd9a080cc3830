/// Owners of what TensorFlow's C API hands out.
#pragma once

#include <memory>
#include <string>

#include "glue/tensorflow_api.h"

namespace farandole::tf {

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

struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { api().TF_DeleteShapeHandle(shape); }
};
using ShapeHandle = std::unique_ptr<TF_ShapeHandle, DeleteShape>;

}  // namespace farandole::tf

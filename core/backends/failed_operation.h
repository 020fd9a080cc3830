/// An operation that cannot start: its first step returns the error.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backends/operation.h"

namespace farandole {

class FailedOperation final : public Operation {
 public:
  explicit FailedOperation(Error reason) : reason_(std::move(reason)) {}
  [[nodiscard]] Result<Step> step() override { return reason_; }

 private:
  Error reason_;
};

[[nodiscard]] inline std::unique_ptr<Operation> failed_operation(Code code, std::string message,
                                                                 Rank peer = -1) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  error.peer = peer;
  return std::make_unique<FailedOperation>(std::move(error));
}

}  // namespace farandole

/// Operations whose members first tell each other how much each brings.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "collectives/task.h"

namespace rueda {

/// Every member brings equally many numbers; when all have all of them, the operation proper is
/// made.
class Counted : public Operation {
 public:
  Result<Step> step() final;
  std::vector<Rank> waiting_for() const final { return exchange_->waiting_for(); }
  std::string_view path() const final { return exchange_->path(); }

 protected:
  /// `own`: the numbers of this member.
  Counted(Backend& backend, std::vector<std::int64_t> own);

  [[nodiscard]] std::int64_t number(std::size_t member, std::size_t which) const {
    return all_[member * own_.size() + which];
  }
  [[nodiscard]] Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  /// Once, when number() may be asked.
  virtual Result<std::unique_ptr<Operation>> move() = 0;

  Backend& backend_;
  std::size_t size_;
  std::vector<std::int64_t> own_;
  std::vector<std::int64_t> all_;  // by member
  std::unique_ptr<Operation> exchange_;
  bool moving_ = false;  // false: the numbers are being exchanged; true: what they count
};

}  // namespace rueda

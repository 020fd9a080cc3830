#include "collectives/counted.h"

#include <span>
#include <utility>

namespace rueda {

Counted::Counted(Backend& backend, std::vector<std::int64_t> own)
    : backend_(backend),
      size_(static_cast<std::size_t>(backend.members().size())),
      own_(std::move(own)),
      all_(size_ * own_.size()) {
  GatherPlan plan;
  plan.in = {std::as_bytes(std::span(own_))};
  plan.out.reserve(size_);
  for (std::size_t m = 0; m < size_; ++m) {
    plan.out.push_back(
        {std::as_writable_bytes(std::span(all_).subspan(m * own_.size(), own_.size()))});
  }
  exchange_ = backend.allgather(std::move(plan));
}

Result<Step> Counted::step() {
  auto step = exchange_->step();
  if (!step || *step != Step::Done || moving_) return step;
  auto operation = move();
  if (!operation) return std::move(operation).error();
  exchange_ = std::move(*operation);
  moving_ = true;
  return Step::Advanced;
}

}  // namespace rueda

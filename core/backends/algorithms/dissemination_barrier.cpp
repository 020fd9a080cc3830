#include <cstddef>

#include "backends/algorithms/direct_collectives.h"
#include "backends/algorithms/transfers.h"

namespace farandole {
namespace {

class DisseminationBarrier final : public Operation {
 public:
  explicit DisseminationBarrier(Backend& backend)
      : size_(backend.members().size()), self_(backend.members().self), transfers_(backend) {}

  Result<Step> step() override {
    bool moved = false;
    while (pending_ == 0) {
      if (distance_ >= size_) return Step::Done;
      transfers_.send((self_ + distance_) % size_, {&said_, 1}, pending_);
      transfers_.recv((self_ - distance_ + size_) % size_, {&heard_, 1}, pending_);
      distance_ *= 2;
      auto exchanged = transfers_.step();
      if (!exchanged) return std::move(exchanged).error();
      moved = true;
    }
    if (!moved) {
      auto exchanged = transfers_.step();
      if (!exchanged) return std::move(exchanged).error();
      moved = *exchanged;
    }
    return moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  const int size_;
  const int self_;
  int distance_ = 1;  // of the next round
  int pending_ = 0;
  std::byte said_{1};
  std::byte heard_{0};
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> dissemination_barrier(Backend& backend) {
  return std::make_unique<DisseminationBarrier>(backend);
}

}  // namespace farandole

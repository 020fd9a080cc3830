#include <cstring>
#include <utility>

#include "backends/algorithms/direct_collectives.h"
#include "backends/algorithms/transfers.h"

namespace farandole {
namespace {

/// Posts all transfers at once. The parts are contiguous at both ends, so nothing is staged and all
/// links are busy all the time.
class DirectAlltoall final : public Operation {
 public:
  DirectAlltoall(Backend& backend, AlltoallPlan plan)
      : members_(backend.members()), plan_(std::move(plan)), transfers_(backend) {}

  Result<Step> step() override {
    bool moved = !posted_;
    if (!posted_) post();
    auto exchanged = transfers_.step();
    if (!exchanged) return std::move(exchanged).error();
    moved = moved || *exchanged;
    if (pending_ == 0) return Step::Done;
    return moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  void post() {
    posted_ = true;
    const int size = members_.size();
    for (int distance = 1; distance < size; ++distance) {  // so that not all begin with member 0
      const int to = (members_.self + distance) % size;
      const int from = (members_.self - distance + size) % size;
      transfers_.send(to, plan_.in[static_cast<std::size_t>(to)], pending_);
      transfers_.recv(from, plan_.out[static_cast<std::size_t>(from)], pending_);
    }
    const auto self = static_cast<std::size_t>(members_.self);
    if (!plan_.in[self].empty()) {
      std::memcpy(plan_.out[self].data(), plan_.in[self].data(), plan_.in[self].size());
    }
  }

  const Members& members_;
  const AlltoallPlan plan_;
  bool posted_ = false;
  int pending_ = 0;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> direct_alltoall(Backend& backend, AlltoallPlan plan) {
  return std::make_unique<DirectAlltoall>(backend, std::move(plan));
}

}  // namespace farandole

#include "backends/algorithms/transfers.h"

#include <algorithm>
#include <utility>

namespace farandole {

void Transfers::Queue::push(std::unique_ptr<Operation> operation, int& pending) {
  if (empty()) {
    transfers.clear();
    done = 0;
  }
  ++pending;
  transfers.push_back({std::move(operation), &pending});
}

Result<bool> Transfers::Queue::step() {
  bool moved = false;
  while (!empty()) {
    Transfer& first = transfers[done];
    auto step = first.operation->step();
    if (!step) return std::move(step).error();
    moved = moved || *step != Step::Blocked;
    if (*step != Step::Done) break;
    first.operation.reset();
    --*first.pending;
    ++done;
  }
  return moved;
}

void Transfers::send(int peer, std::span<const std::byte> data, int& pending) {
  if (data.empty()) return;
  sends_[static_cast<std::size_t>(peer)].push(backend_.send(peer, data), pending);
}

void Transfers::recv(int peer, std::span<std::byte> data, int& pending) {
  if (data.empty()) return;
  recvs_[static_cast<std::size_t>(peer)].push(backend_.recv(peer, data), pending);
}

Result<bool> Transfers::step() {
  bool moved = false;
  for (std::vector<Queue>* queues : {&sends_, &recvs_}) {
    for (Queue& queue : *queues) {
      if (queue.empty()) continue;
      auto step = queue.step();
      if (!step) return step;
      moved = moved || *step;
    }
  }
  return moved;
}

std::vector<Rank> Transfers::waiting_for() const {
  std::vector<Rank> ranks;
  for (std::size_t peer = 0; peer < sends_.size(); ++peer) {
    if (!sends_[peer].empty() || !recvs_[peer].empty()) {
      ranks.push_back(backend_.members().ranks[peer]);
    }
  }
  return ranks;
}

}  // namespace farandole

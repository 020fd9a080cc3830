#include "nccl/group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "fake_nccl.h"

namespace farandole::fakes {

Group& Group::get() {
  thread_local Group group;
  return group;
}

int Group::note(int result) {
  if (depth_ > 0 && failed_ == ncclSuccess && result != ncclInProgress) failed_ = result;
  return result;
}

int Group::add(Communicator& communicator, Operation operation, void* stream) {
  if (depth_ == 0) return communicator.launch({std::move(operation)}, stream);
  auto batch = std::ranges::find(batches_, &communicator, &Batch::communicator);
  if (batch == batches_.end()) {
    batch = batches_.insert(batch, Batch{&communicator, stream, {}});
  }
  batch->operations.push_back(std::move(operation));
  return ncclSuccess;
}

int Group::add(Communicator& communicator, const WorldId& id) {
  if (!communicator.blocking()) {
    communicator.join_later(id);
    return ncclInProgress;
  }
  if (depth_ == 0) return communicator.join(id);
  joins_.push_back({&communicator, id});
  return ncclSuccess;
}

int Group::end() {
  if (depth_ == 0) return ncclInvalidUsage;
  if (--depth_ > 0) return ncclSuccess;
  const auto batches = std::exchange(batches_, {});
  const auto joins = std::exchange(joins_, {});
  int result = std::exchange(failed_, 0);
  if (result != ncclSuccess) return result;
  {
    std::vector<std::jthread> threads;  // they meet each other
    for (const Join& join : joins) {
      threads.emplace_back([&join] { join.communicator->join(join.id); });
    }
  }
  for (const Join& join : joins) {
    if (result == ncclSuccess) result = join.communicator->status();
  }
  for (const Batch& batch : batches) {
    const int launched = batch.communicator->launch(batch.operations, batch.stream);
    if (result == ncclSuccess || result == ncclInProgress) {
      result = launched == ncclSuccess ? result : launched;
    }
  }
  return result;
}

}  // namespace farandole::fakes

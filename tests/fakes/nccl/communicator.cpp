#include "nccl/communicator.h"

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "devices/driver.h"
#include "fake_cuda.h"
#include "fake_nccl.h"

// Those functions of the driver that are needed here.
extern "C" {
int cuCtxGetCurrent(farandole::DriverContext* context);
int cuCtxGetDevice(int* device);
int cuCtxPushCurrent_v2(farandole::DriverContext context);
int cuCtxPopCurrent_v2(farandole::DriverContext* context);
int cuDeviceGetPCIBusId(char* text, int length, int device);
}

namespace farandole::fakes {
namespace {

/// How much later a communicator that does not block does what it was asked: longer than a host
/// needs for its next call.
constexpr auto kLater = std::chrono::microseconds(300);

}  // namespace

struct Communicator::Job {
  Communicator* communicator;
  std::shared_ptr<World> world;
  std::vector<Operation> operations;
  std::uint64_t number;
};

int Communicator::take_device() {
  DriverContext context = nullptr;
  std::array<char, 32> name{};
  if (cuCtxGetCurrent(&context) != kDriverSuccess || context == nullptr ||
      cuCtxGetDevice(&device_) != kDriverSuccess ||
      cuDeviceGetPCIBusId(name.data(), static_cast<int>(name.size()), device_) != kDriverSuccess) {
    return ncclUnhandledCudaError;
  }
  context_ = context;
  device_name_ = name.data();
  return ncclSuccess;
}

int Communicator::join(const WorldId& id) {
  if (hangs_) {
    stay_until_aborted(ncclInProgress);
    return ncclInProgress;
  }
  auto world = World::open(id, rank_, size_, aborted_);
  const int result = world == nullptr ? ncclSystemError : world->join(device_name_);
  const std::scoped_lock lock(mutex_);
  if (result == ncclSuccess) world_ = std::move(world);
  status_ = result;
  changed_.notify_all();
  return result;
}

void Communicator::join_later(const WorldId& id) {
  {
    const std::scoped_lock lock(mutex_);
    status_ = ncclInProgress;
  }
  std::thread([this, id] {
    std::this_thread::sleep_for(kLater);
    join(id);
  }).detach();
}

int Communicator::put_on_stream(std::vector<Operation> operations, void* stream) {
  const std::scoped_lock lock(mutex_);
  if (world_ == nullptr) return ncclInvalidUsage;
  for (const Operation& operation : operations) {
    traffic().operations.fetch_add(1, std::memory_order_relaxed);
    if (operation.sends(rank_)) {
      traffic().bytes.fetch_add(operation.send_bytes(size_), std::memory_order_relaxed);
    }
  }
  auto job = std::make_unique<Job>(Job{this, world_, std::move(operations), launched_});
  if (cuCtxPushCurrent_v2(static_cast<DriverContext>(context_)) != kDriverSuccess) {
    return ncclUnhandledCudaError;
  }
  const auto run_job = [](void* argument) {
    const std::unique_ptr<Job> owned(static_cast<Job*>(argument));
    owned->communicator->run(*owned);
  };
  const int status = fakeCudaRun(stream, run_job, job.get());
  cuCtxPopCurrent_v2(nullptr);
  if (status != kDriverSuccess) return ncclUnhandledCudaError;
  static_cast<void>(job.release());
  ++launched_;
  return ncclSuccess;
}

int Communicator::launch(std::vector<Operation> operations, void* stream) {
  if (blocking_) return put_on_stream(std::move(operations), stream);
  {
    const std::scoped_lock lock(mutex_);
    status_ = ncclInProgress;
  }
  std::thread([this, operations = std::move(operations), stream]() mutable {
    std::this_thread::sleep_for(kLater);
    const int result = put_on_stream(std::move(operations), stream);
    const std::scoped_lock lock(mutex_);
    if (status_ == ncclInProgress) status_ = result;
    changed_.notify_all();
  }).detach();
  return ncclInProgress;
}

void Communicator::stay_until_aborted(int async_error) {
  std::unique_lock lock(mutex_);
  if (async_error != ncclSuccess) status_ = async_error;
  changed_.wait(lock, [this] { return aborted_.load(); });
}

void Communicator::run(Job& job) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ == job.number || aborted_.load(); });
  }
  int result = ncclSuccess;
  for (const Operation& operation : job.operations) {
    if (operation.hangs) stay_until_aborted(operation.async_error);
  }
  if (!aborted_.load()) result = farandole::fakes::run(*job.world, job.operations);
  if (result == ncclUnhandledCudaError) fakeCudaBreak(device_, 700);
  job.world = nullptr;
  const std::scoped_lock lock(mutex_);
  if (result != ncclSuccess) status_ = result;
  ++finished_;
  changed_.notify_all();
}

int Communicator::finalize() {
  std::unique_lock lock(mutex_);
  if (!blocking_) {
    finalizing_ = true;
    return finished_ == launched_ ? status_ : static_cast<int>(ncclInProgress);
  }
  changed_.wait(lock, [this] { return finished_ == launched_ || aborted_.load(); });
  return status_;
}

void Communicator::destroy() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_ == launched_ || aborted_.load(); });
  }
  abort();
}

void Communicator::abort() {
  std::shared_ptr<World> world;
  {
    const std::scoped_lock lock(mutex_);
    aborted_.store(true);
    world = std::exchange(world_, nullptr);
    changed_.notify_all();
  }
  if (world != nullptr) world->changed();
}

int Communicator::status() {
  const std::scoped_lock lock(mutex_);
  if (finalizing_ && status_ == ncclSuccess && finished_ != launched_) return ncclInProgress;
  return status_;
}

int Communicator::ready() {
  const int now = status();
  return now == ncclInProgress ? static_cast<int>(ncclInvalidArgument) : now;
}

int Communicator::add_op(const ReduceOp& op) {
  const std::scoped_lock lock(mutex_);
  ops_[next_op_] = op;
  return next_op_++;
}

bool Communicator::remove_op(int op) {
  const std::scoped_lock lock(mutex_);
  return ops_.erase(op) != 0;
}

bool Communicator::find_op(int op, ReduceOp& found) {
  if (op >= ncclSum && op <= ncclAvg) {
    found = ReduceOp{.op = op};
    return true;
  }
  const std::scoped_lock lock(mutex_);
  const auto at = ops_.find(op);
  if (at == ops_.end()) return false;
  found = at->second;
  return true;
}

Traffic& traffic() {
  static Traffic total;
  return total;
}

}  // namespace farandole::fakes

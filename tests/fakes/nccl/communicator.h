/// A communicator of one rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/slots.h"
#include "nccl/operation.h"
#include "nccl/world.h"

namespace farandole::fakes {

class Communicator : public Slot<Communicator> {
 public:
  /// The device is that of the current context.
  /// `hangs`: it never meets the others, until it is aborted.
  Communicator(int size, int rank, bool blocking, bool hangs)
      : size_(size), rank_(rank), blocking_(blocking), hangs_(hangs) {}

  /// Reads which device this rank has; a result of NCCL.
  [[nodiscard]] int take_device();
  /// Meets the other ranks, and makes the answer that of status().
  int join(const WorldId& id);
  /// The next join is on another thread, and the caller is told ncclInProgress.
  void join_later(const WorldId& id);

  /// Puts operations on a stream, now or, of one that does not block, a little later.
  int launch(std::vector<Operation> operations, void* stream);
  /// Waits for what was launched, or lets status() wait for it.
  int finalize();
  /// Waits for what was launched, then lets go of the world.
  void destroy();
  void abort();

  /// ncclInProgress, an error that came later, or ncclSuccess.
  [[nodiscard]] int status();
  /// What a call answers that may not begin now; ncclSuccess: it may.
  [[nodiscard]] int ready();

  [[nodiscard]] int add_op(const ReduceOp& op);
  [[nodiscard]] bool remove_op(int op);
  /// False: no such op.
  [[nodiscard]] bool find_op(int op, ReduceOp& found);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] bool blocking() const noexcept { return blocking_; }

 private:
  struct Job;

  int put_on_stream(std::vector<Operation> operations, void* stream);
  /// On the stream's thread.
  void run(Job& job);
  void stay_until_aborted(int async_error);

  const int size_;
  const int rank_;
  const bool blocking_;
  const bool hangs_;
  int device_ = -1;
  void* context_ = nullptr;
  std::string device_name_;
  std::atomic<bool> aborted_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::shared_ptr<World> world_;
  int status_ = 0;
  bool finalizing_ = false;
  std::uint64_t launched_ = 0;
  std::uint64_t finished_ = 0;  ///< also the number of the operation that may run
  std::map<int, ReduceOp> ops_;
  int next_op_ = 5;
};

/// Operations started, and their bytes, for fakeNcclCount.
struct Traffic {
  std::atomic<std::size_t> operations{0};
  std::atomic<std::size_t> bytes{0};
};
[[nodiscard]] Traffic& traffic();

}  // namespace farandole::fakes

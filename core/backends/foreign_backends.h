/// The contract with backends that are written in another language (Python): what the engine and
/// the binding see of them.
///
/// Their verbs may block, so they run on a thread of their own, and an operation only checks
/// whether they are done. Only send and recv are required. What a class lacks, or cannot reduce, is
/// done by the defaults over these two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "mutex.h"

namespace farandole {

/// The thread that runs code which may block, as backends see it. Any thread may call. Outlives
/// whoever holds it.
class Blocking {
 public:
  virtual ~Blocking() = default;
  /// A job is called repeatedly until it returns Done. Jobs begin in the order in which they were
  /// posted; several may be Blocked at the same time. Jobs do not throw.
  virtual void post(std::function<Step()> job) = 0;
  /// Something that the engine waits for has happened.
  virtual void completed() = 0;
};

/// What a foreign backend may be asked to do. The closed set of verbs.
enum class ForeignVerb : std::uint8_t {
  Send,            ///< `in` to member `peer`
  Recv,            ///< `out` from member `peer`
  Allreduce,       ///< `out` in place
  Allgatherv,      ///< `in` of every member, one after another, into `out`; `out_lengths` by member
  Broadcast,       ///< `out` in place, from member `peer`
  Reducescatterv,  ///< of `in`, this member's part into `out`; `out_lengths` by member
  Alltoallv,       ///< `in` cut by `in_lengths`, `out` by `out_lengths`, both by member
  Barrier,
};
inline constexpr std::size_t kVerbs = 8;
[[nodiscard]] std::string_view name_of(ForeignVerb verb) noexcept;

/// One call. Buffers are contiguous; lengths are bytes; dtype and op mean something to reductions
/// only. `op` is Sum, Min, Max or Product (on Bool: or, and, or, and).
struct ForeignCall {
  ForeignVerb verb = ForeignVerb::Barrier;
  int peer = -1;  ///< set rank
  std::span<const std::byte> in = {};
  std::span<std::byte> out = {};
  std::vector<std::size_t> in_lengths = {};
  std::vector<std::size_t> out_lengths = {};
  DType dtype = DType::UInt8;
  ReduceOp op = ReduceOp::Sum;
};

/// The backend of one process set, in the other language. All calls on the executor's thread, but
/// abort().
class Foreign {
 public:
  virtual ~Foreign() = default;
  /// The call under way, as an operation whose step() may block. The buffers are valid until it is
  /// destroyed.
  virtual std::unique_ptr<Operation> call(const ForeignCall& call) = 0;
  /// The set is not needed any more; the last call.
  virtual Result<void> close() = 0;
  /// Whatever is under way, and all that comes, fails. Any thread; may block.
  virtual void abort() noexcept = 0;
};

/// What is known of the class before there is an object. Any thread, but open().
class ForeignClass {
 public:
  virtual ~ForeignClass() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual bool has(ForeignVerb verb) const noexcept = 0;
  /// Whether its reductions know that; if not, the defaults do it. The same on every rank.
  [[nodiscard]] virtual bool reduces(DType dtype, ReduceOp op) const noexcept = 0;
  /// On the executor's thread.
  virtual Result<std::shared_ptr<Foreign>> open(const Members& members) = 0;
};

class ForeignSession;
class Aborts;

/// All backends of one class in one engine.
class ForeignBackends {
 public:
  ForeignBackends(std::shared_ptr<ForeignClass> kind, std::shared_ptr<Blocking> executor);

  /// The object is made on the executor's thread: what is wrong there, the first operation says.
  [[nodiscard]] std::unique_ptr<Backend> open(Members members);
  /// Closes all open backends after their current call. Any thread.
  void close();
  /// Aborts all calls in progress, without waiting for them. Any thread.
  void abort();
  /// Waits until every abort() has returned. False: one has not.
  [[nodiscard]] bool settle(Duration patience);
  /// True if an operation was destroyed before its verb had returned. Any thread.
  [[nodiscard]] bool stuck();
  /// What becomes of a verb that has not come to its end by the end of the engine.
  [[nodiscard]] std::string describe_stuck() const;
  [[nodiscard]] std::string_view name() const noexcept { return kind_->name(); }

 private:
  std::shared_ptr<ForeignClass> kind_;
  std::shared_ptr<Blocking> executor_;
  std::shared_ptr<Aborts> aborts_;
  Mutex mutex_;
  std::vector<std::weak_ptr<ForeignSession>> sessions_ FARANDOLE_GUARDED_BY(mutex_);
};

}  // namespace farandole

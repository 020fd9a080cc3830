/// The contract of a backend: it moves bytes among the members of one process set.
///
/// A backend object belongs to one process set. The members of the set have the numbers 0 … size-1
/// in it ("set ranks"). All members start the same operations in the same order. Each call returns
/// an Operation, which the engine steps until it is done and which must not outlive the backend.
/// Operations of one backend run one after another, never interleaved. Only send() and recv() must
/// be written. Each verb has a default over these two: an algorithm of algorithms/ that is correct
/// for any number of members. Reductions compute the one association of
/// kernels/association.h, whatever the size, the chunks or the batch, so the same inputs give the
/// same bits on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backends/operation.h"
#include "kernels/association.h"
#include "result.h"
#include "transport/operation_tag.h"
#include "types.h"

namespace farandole {

/// One tensor of a fused reduction. in == out for in-place; otherwise they do not overlap.
/// Zero elements are legal, with any pointers.
struct Piece {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  ///< elements
};

/// An allgather. This member contributes the concatenation of `in`. The contribution of
/// member m is scattered over `out[m]`, which has the same total length as that member's `in`. This
/// member's own part is copied too.
struct GatherPlan {
  std::vector<std::span<const std::byte>> in;
  std::vector<std::vector<std::span<std::byte>>> out;  ///< by set rank
  /// Where each part of `out[m]` lies in the memory of member m; empty: not known. All members know
  /// it, or none does.
  std::vector<std::vector<std::uint64_t>> theirs = {};
};

/// One tensor of a fused reducescatter: every member contributes a whole tensor and receives its
/// part of the result.
struct ScatterPiece {
  const std::byte* in = nullptr;  ///< begins.back() elements
  std::byte* out = nullptr;       ///< the own part, contiguous; does not overlap `in`
  /// By set rank, followed by the end: member m receives the elements [begins[m], begins[m + 1]).
  /// Parts may be empty. Equal on every member.
  std::vector<std::size_t> begins;
};

/// An alltoall. `in[m]` goes to member m; `out[m]` comes from member m, whose `in` for
/// this member has the same length. This member's own part is copied too.
struct AlltoallPlan {
  std::vector<std::span<const std::byte>> in;  ///< by set rank
  std::vector<std::span<std::byte>> out;       ///< by set rank
  /// The largest contribution of a member, in bytes. Equal on every member, so that all choose the
  /// same algorithm.
  std::size_t longest = 0;
  /// By set rank: where `out[m]` lies in the memory of member m; empty: not known. All members know
  /// it, or none does.
  std::vector<std::uint64_t> theirs = {};
};

/// out = postscale * reduce(prescale * in), element by element over the concatenation of `pieces`,
/// which has the same counts on every member. The pieces are copied, the memory they name is not.
struct Allreduce {
  std::span<const Piece> pieces;
  Reduction reduction;
};

/// Reduces the concatenation of `pieces`; every member receives its part. The same bits as those of
/// an allreduce.
struct Reducescatter {
  std::span<const ScatterPiece> pieces;
  Reduction reduction;
};

/// Copies bytes from member `root` to all. On the root `in` is the source; on other members it is
/// ignored. `out` may equal `in`; on the root an `out` that differs from `in` is filled as well.
struct Broadcast {
  std::span<const std::byte> in;
  std::span<std::byte> out;
  int root = 0;
};

/// Completes when all members have started it.
struct Barrier {};

/// What members do together. A backend has functions for those that it does in a way of its own.
using Verb = std::variant<Allreduce, GatherPlan, Reducescatter, AlltoallPlan, Broadcast, Barrier>;

/// The members of a process set.
struct Members {
  std::vector<Rank> ranks;  ///< global rank of each member, ascending
  int self = 0;             ///< set rank of this process
  /// Transport groups (hosts) as set ranks; one association for all backends is made from it.
  std::vector<std::vector<int>> groups;
  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks.size()); }
};

class Staging;

class Backend {
 public:
  explicit Backend(Members members);
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;  ///< "local", "shm", "tcp", …
  /// The data path of an operation of that kind and size, for reports: "shm.small".
  [[nodiscard]] virtual std::string_view path(Kind kind, std::size_t bytes) const noexcept;

  /// Transfers that are started from now on carry that tag. The reader compares it before it uses a
  /// byte, so data of another operation are an error, never a wrong result.
  virtual void begin(OperationTag /*operation*/) {}
  /// Sends bytes to `peer` (set rank). Sends and receives of a pair match in order. The span stays
  /// valid until the operation is done.
  virtual std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) = 0;
  virtual std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) = 0;

  /// Starts a collective. What the verb names stays valid until the operation is done. Default: an
  /// algorithm over send() and recv().
  virtual std::unique_ptr<Operation> start(Verb verb);
  /// A barrier through send and recv alone. It uses no memory of the set, so it can be the set's
  /// first and last operation.
  std::unique_ptr<Operation> meet();

  [[nodiscard]] const Members& members() const noexcept { return members_; }
  [[nodiscard]] const Association& association() const noexcept { return association_; }

 protected:
  // Returns an operation that fails if the arguments are contradictory or no backend supports them;
  // else null.
  [[nodiscard]] std::unique_ptr<Operation> refuse(const Allreduce& verb) const;
  [[nodiscard]] std::unique_ptr<Operation> refuse(const GatherPlan& plan) const;
  [[nodiscard]] std::unique_ptr<Operation> refuse(const Reducescatter& verb) const;
  [[nodiscard]] std::unique_ptr<Operation> refuse(const AlltoallPlan& plan) const;
  /// Staging memory, kept from one operation to the next.
  [[nodiscard]] Staging& staging() const noexcept { return *staging_; }

 private:
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb);

  Members members_;
  Association association_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace farandole

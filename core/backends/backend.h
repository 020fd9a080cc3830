/// The contract of a backend: it moves bytes among the members of one process set.
///
/// A backend object belongs to one process set, the world or another; members count 0 … size-1 in
/// it ("set rank").
/// All members start the same operations in the same order; each call returns an Operation that the
/// engine steps until it is done, and which the backend outlives. Operations of one backend run one
/// after another, never interleaved.
/// Only send() and recv() must be written: everything else has a default over these two, an
/// algorithm of algorithms/ that is correct for any number of members. Reductions compute the one
/// association of kernels/association.h, whatever the size, the chunks or the batch: the same
/// inputs give the same bits everywhere.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/operation.h"
#include "kernels/association.h"
#include "result.h"
#include "transport/operation_tag.h"
#include "types.h"

namespace rueda {

/// One tensor of a fused reduction. in == out for in-place; otherwise they do not overlap.
/// Zero elements are legal, with any pointers.
struct Piece {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  ///< elements
};

/// What a gather moves: this member contributes the concatenation of `in`; member m's contribution
/// is scattered over `out[m]` (same total length as that member's `in`). The own part is copied
/// too.
struct GatherPlan {
  std::vector<std::span<const std::byte>> in;
  std::vector<std::vector<std::span<std::byte>>> out;  ///< by set rank
};

/// One tensor of a fused reducescatter: every member brings all of it and gets its own part.
struct ScatterPiece {
  const std::byte* in = nullptr;  ///< begins.back() elements
  std::byte* out = nullptr;       ///< the own part, contiguous; does not overlap `in`
  /// By set rank, and the end: member m gets the elements [begins[m], begins[m + 1]). Parts may be
  /// empty. The same on every member.
  std::vector<std::size_t> begins;
};

/// What an alltoall moves: `in[m]` goes to member m, `out[m]` comes from member m (its `in` for
/// this member has the same length). The own part is copied too.
struct AlltoallPlan {
  std::vector<std::span<const std::byte>> in;  ///< by set rank
  std::vector<std::span<std::byte>> out;       ///< by set rank
  /// Bytes that the member brings which brings most: the same number on every member, so that all
  /// choose the same way.
  std::size_t longest = 0;
};

/// Who the members are.
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
  /// Which way an operation of that kind and size takes, e.g. "shm.small"; for reports.
  [[nodiscard]] virtual std::string_view path(Kind kind, std::size_t bytes) const noexcept;

  /// What is started from now on belongs to that operation.
  virtual void begin(OperationTag /*operation*/) {}
  /// Bytes to `peer` (set rank); pairs of send and recv match in order. The span stays valid until
  /// done.
  virtual std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) = 0;
  virtual std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) = 0;

  /// out = postscale * reduce(prescale * in) element by element over the concatenation of `pieces`
  /// (same counts on every member). The pieces are copied; the memory they name stays valid until
  /// done. Default: direct_allreduce().
  virtual std::unique_ptr<Operation> allreduce(std::span<const Piece> pieces,
                                               const Reduction& reduction);
  /// Default: direct_allgather().
  virtual std::unique_ptr<Operation> allgather(GatherPlan plan);
  /// Every member gets its own part of the reduction of the concatenation of `pieces`: the same
  /// bits as allreduce() gives there. Default: direct_reducescatter().
  virtual std::unique_ptr<Operation> reducescatter(std::span<const ScatterPiece> pieces,
                                                   const Reduction& reduction);
  /// Default: direct_alltoall().
  virtual std::unique_ptr<Operation> alltoall(AlltoallPlan plan);
  /// From member `root` to all. On the root `in` is the source; elsewhere it is ignored.
  /// `out` may equal `in`; on the root an `out` that differs from `in` is filled as well.
  /// Default: tree_broadcast().
  virtual std::unique_ptr<Operation> broadcast(std::span<const std::byte> in,
                                               std::span<std::byte> out, int root);
  /// Everybody has arrived. Default: dissemination_barrier().
  virtual std::unique_ptr<Operation> barrier();
  /// The same through send and recv alone, which owe nothing to memory that belongs to the set: for
  /// its first and its last operation.
  std::unique_ptr<Operation> meet();

  [[nodiscard]] const Members& members() const noexcept { return members_; }
  [[nodiscard]] const Association& association() const noexcept { return association_; }

 protected:
  // An operation that fails, for what no backend can do or what contradicts itself; else null.
  [[nodiscard]] std::unique_ptr<Operation> refuse(const Reduction& reduction) const;
  [[nodiscard]] std::unique_ptr<Operation> refuse(std::span<const ScatterPiece> pieces,
                                                  const Reduction& reduction) const;
  [[nodiscard]] std::unique_ptr<Operation> refuse(const AlltoallPlan& plan) const;
  /// Memory kept from one operation to the next.
  [[nodiscard]] Staging& staging() const noexcept { return *staging_; }

 private:
  Members members_;
  Association association_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace rueda

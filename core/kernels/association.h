/// The one order in which values of many ranks are combined (P4).
///
/// For every element: the ranks of a host left to right (as reduce() does: half types in float32,
/// rounded once per host), then the hosts by a binary tree, rounded to the dtype at every step. The
/// factor goes with the last step, before its rounding; of half types that are averaged, shares of
/// it go with the steps before.
/// Every algorithm, whatever its size, chunks or batch, has to compute exactly this.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "types.h"

namespace farandole {

/// What the steps of an association multiply by before they round.
///
/// The last step multiplies by the factor. But a sum of half types may not fit its type although
/// the average does. So every step that may double values also halves them, as far as the factor is
/// small enough. A host divides by the smallest power of two that is not below the most ranks of a
/// host; each round of the tree but the last divides by two. Then an intermediate value is never
/// larger than the largest input, and smaller than the result by one digit at most. A power of two
/// changes no digit of a value that neither overflows nor is subnormal.
struct Shares {
  double host = 1.0;  ///< the value of every host, also of one with a single rank
  int halving = 0;    ///< rounds of the tree that halve, the first ones
  double last = 1.0;  ///< the last round

  /// The factor of a round that is not the last. In the round of the surplus hosts it applies to
  /// hosts without a partner as well.
  [[nodiscard]] double round(int index) const noexcept { return index < halving ? 0.5 : 1.0; }
};

class Association {
 public:
  /// One network step: the value of host `into` becomes (value of `into`) op (value of `from`).
  /// into < from; as combining two values commutes bit for bit, both may compute it (recursive
  /// doubling).
  struct Step {
    int into;
    int from;
    friend bool operator==(const Step&, const Step&) = default;
  };

  /// `groups`: the members 0 … p-1 of each host, ascending inside a host, hosts ordered by their
  /// first member, every member in exactly one host.
  explicit Association(std::vector<std::vector<int>> groups);

  /// Number of sources.
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(groups_.size()); }
  [[nodiscard]] const std::vector<std::vector<int>>& groups() const noexcept { return groups_; }

  /// The tree between hosts, in an order in which it can be computed; host 0 gets the result.
  /// P is the largest power of two. First every host beyond P is combined into the host P below it.
  /// Then come distances 1, 2, 4 … P/2: host i with host i + distance, i a multiple of
  /// 2 * distance.
  [[nodiscard]] const std::vector<Step>& steps() const noexcept { return steps_; }

  /// With a single host `last` is everything.
  [[nodiscard]] Shares shares(DType dtype, ReduceOp op, double postscale) const noexcept;

  /// The whole tree at once: out = postscale * tree(sources), sources by member number.
  /// Rules for memory, dtypes, `postscale` and `also_out` are those of reduce().
  /// With a single host this is reduce().
  void evaluate(std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                DType dtype, ReduceOp op, double postscale = 1.0, std::byte* also_out = nullptr,
                Level level = best_level()) const;

 private:
  std::vector<std::vector<int>> groups_;
  std::vector<Step> steps_;
  int size_ = 0;
  int doublings_ = 0;  // within hosts
  int rounds_ = 0;     // of the tree; one of them for the surplus hosts, if there are any
};

}  // namespace farandole

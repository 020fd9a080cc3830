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

namespace rueda {

/// What the steps of an association multiply by before they round.
///
/// All of the factor goes with the last step. But sums of half types may not fit their type while
/// their average does. So as far as the factor is small enough, every step that may double values
/// halves them: hosts by the power of two that is not below the most ranks of a host, and each
/// round of the tree but the last. What is combined so far is then never larger than the largest
/// input, nor smaller than the result by more than a digit; and a power of two changes no digit of
/// what neither overflows nor is subnormal.
struct Shares {
  double host = 1.0;  ///< the value of every host, also of one with a single rank
  int halving = 0;    ///< rounds of the tree that halve, the first ones
  double last = 1.0;  ///< the last round

  /// A round that is not the last. In the round of the surplus hosts, those which meet none are
  /// multiplied, too.
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

  /// The tree between hosts, in an order in which it can be computed; the result ends up at host 0.
  /// First every host beyond the largest power of two P into the host P below it, then distances
  /// 1, 2, 4 … P/2: host i with host i + distance, i a multiple of 2 * distance.
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
  int doublings_ = 0;  // inside of hosts
  int rounds_ = 0;     // of the tree; one of them for the surplus hosts, if there are any
};

}  // namespace rueda

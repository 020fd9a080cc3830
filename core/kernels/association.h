/// The one order in which values of many ranks are combined (P4).
///
/// For every element: the ranks of a host left to right (as reduce() does: half types in float32,
/// rounded once per host), then the hosts by a binary tree, rounded to the dtype at every step.
/// Every algorithm, whatever its size, chunks or batch, has to compute exactly this.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "types.h"

namespace rueda {

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
};

}  // namespace rueda

/// The identity of a submission: its key says which operation it is, its signature says how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "types.h"

namespace farandole {

/// Which operation: submissions with the same key are the same operation.
/// Names belong to a process set; the generation tells sets apart that had the same number.
struct Key {
  std::int32_t process_set = 0;
  std::uint32_t generation = 0;
  std::string name;             ///< full name, e.g. "allreduce.layer1.weight"; empty if unnamed
  Kind kind = Kind::Allreduce;  ///< only for unnamed keys: kind and number are the key then
  std::uint64_t number = 0;     ///< only for unnamed keys: the handle number, or the count
  friend bool operator==(const Key&, const Key&) = default;
};

/// Members of one grouped submission run together or not at all.
struct Group {
  std::string name;        ///< full name of the group; empty: not in a group
  std::uint32_t size = 0;  ///< members of the group
  friend bool operator==(const Group&, const Group&) = default;
};

/// How: everything that ranks must agree on, and that fusion needs to know.
struct Signature {
  Kind kind = Kind::Allreduce;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  Device device = Device::Host;
  std::int32_t root =
      -1;  ///< global rank, of rooted kinds; the set to remove, for RemoveProcessSet
  double prescale = 1.0;
  double postscale = 1.0;
  Shape shape;  ///< as submitted; what of it must agree depends on the kind (allgather: all but the
                ///< first)
  Group group;
  /// This rank brings nothing. Ranks need not agree on that: where one brings something, the others
  /// take part with zeros; where none does, nothing runs.
  bool absent = false;
  std::vector<Rank> ranks;  ///< members of the new set, for AddProcessSet
  friend bool operator==(const Signature&, const Signature&) = default;
  [[nodiscard]] std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
  }
};

/// What the negotiator needs to know about a kind of operation; see collectives/registry.h.
struct Rules {
  std::string_view name;    ///< "ALLREDUCE": in messages and the timeline
  std::string_view prefix;  ///< "allreduce": of full names
  /// Tools know the phase that moves data in host memory by this name; empty: by `name`. For Adasum
  /// and alltoall only names of MPI exist.
  std::string_view transfer = {};
  bool fusable = false;
  bool runs_with_joined = false;  ///< joined ranks take part with zeros
  bool rows_may_differ = false;   ///< the first dimension is each rank's own affair
  bool in_place = false;  ///< a result is as large as its tensor, and may lie in the same memory
  bool rooted = false;    ///< Signature::root is the member that the operation is about
  /// The first disagreement between two submissions in the order of the documented checks, as a
  /// message ("Mismatched data types: One rank had type …"); empty if they agree.
  std::string (*disagreement)(const Signature& one, const Signature& other) = nullptr;
  /// For messages: "ALLREDUCE Sum of float32 [17, 3]".
  std::string (*describe)(const Signature& signature) = nullptr;
  /// Matched by count, without names: the third submission of a rank in a set is the third of the
  /// others.
  bool matched_by_count = false;
  bool without_tensors = false;  ///< no data of the user moves
};

}  // namespace farandole

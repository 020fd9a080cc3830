/// Allreduce from pair to pair: recursive doubling, and recursive halving and doubling. For members
/// that are a host each.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/buffers/staging.h"

namespace farandole {

// The schedule of an allreduce by pairs: which members exchange what, and when.
//
// Pairs meet at distance 1 first, then 2, 4 …, as the association asks (kernels/association.h), so
// after each meeting both hold the value of one more node of its tree. Every member is a host of
// its own here.
//
// Let P be the largest power of two that is not above the number of members. Each member beyond P
// has a *partner* P below it. One of the two is *inside*: it meets the others for both. The other
// brings its input first and is told the result at the end. Windows take turns in who is inside,
// so both carry half of the load.

/// Elements of a window.
struct WindowRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// One meeting. Both ends have the same stage at the same place of their lists.
struct Meeting {
  int peer = -1;             ///< set rank; -1: nobody, this member pauses
  WindowRange send = {};     ///< of my value; maybe empty
  WindowRange receive = {};  ///< maybe empty
  bool combines = false;     ///< what is received is combined with my value, else it replaces it
  bool completes = false;    ///< this combination is the last: the result
};

/// How a window is carried.
enum class Pairing {
  Doubling,  ///< partners exchange whole values: the fewest meetings
  Halving,   ///< they exchange halves, quarters … and then the results: the fewest bytes
};

/// Number of meetings of a window; the same for all members.
[[nodiscard]] std::size_t meetings(int members, Pairing pairing);

/// The meetings of one member for a window of `count` elements. `aligned`: halves begin at
/// multiples of that many elements.
void plan_meetings(std::vector<Meeting>& plan, int self, int members, Pairing pairing,
                   std::size_t window, std::size_t count, std::size_t aligned);

/// All members have to make the same plan. It never changes the bits.
struct PairedPlan {
  Pairing pairing = Pairing::Halving;
  std::size_t window = 0;     ///< elements that go from pair to pair together
  std::size_t under_way = 4;  ///< windows
};

/// `backend` and `staging` outlive the operation. At least two members. `reduction.op` is one that
/// the kernels know.
[[nodiscard]] std::unique_ptr<Operation> paired_allreduce(Backend& backend, Staging& staging,
                                                          std::span<const Piece> pieces,
                                                          const Reduction& reduction,
                                                          const PairedPlan& plan);

}  // namespace farandole

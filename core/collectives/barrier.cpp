/// Barrier: nobody leaves before everybody has arrived.
/// Source: MPI 4.1, section 6.3.

#include "collectives/collective.h"

namespace farandole {

namespace {

std::string describe(const Signature&) { return "BARRIER"; }

Result<void> check(const Task&, const Members&) { return {}; }

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task>) {
  return backend.start(Barrier{});
}

}  // namespace

const Collective kBarrier{.kind = Kind::Barrier,
                          .rules = {.name = "BARRIER",
                                    .prefix = "barrier",
                                    .disagreement = basic_disagreement,
                                    .describe = describe,
                                    .matched_by_count = true,
                                    .without_tensors = true},
                          .check = check,
                          .start = start,
                          .fast = FastRule{}};

}  // namespace farandole

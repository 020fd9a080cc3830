/// Reducescatter by direct exchange: correct for any members, built on send() and recv() only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/buffers/staging.h"

namespace farandole {

/// `backend` and `staging` outlive the operation. `reduction.op` is one that the kernels know.
/// `window`: elements of every part that are exchanged at a time, the same on all members; two
/// windows are under way. It never changes the bits.
[[nodiscard]] std::unique_ptr<Operation> direct_reducescatter(Backend& backend, Staging& staging,
                                                              std::span<const ScatterPiece> pieces,
                                                              const Reduction& reduction,
                                                              std::size_t window);

}  // namespace farandole

/// A reduction over one member: it only scales.
#pragma once

#include <memory>
#include <span>

#include "backends/backend.h"

namespace farandole {

/// out = postscale * (prescale * in), rounded twice: where a reduction over more members rounds.
[[nodiscard]] std::unique_ptr<Operation> scale_pieces(std::span<const Piece> pieces,
                                                      const Reduction& reduction);

}  // namespace farandole

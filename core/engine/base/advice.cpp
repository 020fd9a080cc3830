#include "engine/base/advice.h"

namespace rueda {

std::string all_must_call(const RankSet& some) {
  const Rank first = some.empty() ? 0 : some.lowest();
  return "all ranks must call it. Is it inside `if hvd.rank() == " + std::to_string(first) +
         ":`? An operation of some ranks only needs a process set";
}

}  // namespace rueda

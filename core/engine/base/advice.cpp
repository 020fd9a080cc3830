#include "engine/base/advice.h"

namespace farandole {

std::string all_must_call(const RankSet& some, const RankSet& others) {
  std::string condition = "an `if` that depends on hvd.rank()";
  if (some.count() == 1) {
    condition = "`if hvd.rank() == " + std::to_string(some.lowest()) + ":`";
  } else if (others.count() == 1) {
    condition = "`if hvd.rank() != " + std::to_string(others.lowest()) + ":`";
  }
  return "all ranks must call it. Is it inside " + condition +
         "? An operation of some ranks only needs a process set";
}

void advise_to_look(std::string& message, std::string_view advice) {
  while (message.ends_with('.') || message.ends_with(' ')) message.pop_back();
  if (message.find("own output") == std::string::npos) message.append(". ").append(advice);
}

}  // namespace farandole

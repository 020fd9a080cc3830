/// The message by which a rank says why it gave up.

#include "engine/failure/cause.h"

#include "target.h"

namespace farandole::fuzz {
namespace {

void run(std::span<const std::byte> input) {
  const auto cause = decode_cause(input);
  if (!cause) return;
  const auto again = decode_cause(encode_cause(cause->error, cause->evidence));
  require(again.has_value(), "a cause that was understood can be passed on");
  require(again->error.code == cause->error.code && again->error.peer == cause->error.peer,
          "code and rank stay");
  require(again->evidence == cause->evidence, "the evidence stays");
  require(again->error.loss == cause->error.loss, "how the rank was lost stays");
  require(again->error.missing == cause->error.missing, "the ranks that were waited for stay");
}

std::vector<Bytes> seeds() {
  Error error;
  error.code = Code::PeerLost;
  error.message = "rank 3 on host b went away";
  error.tensor = "allreduce.gradient";
  error.peer = 3;
  error.missing = {3, 4};
  error.waited_s = 1.5;
  return {encode_cause(error), encode_cause(Error{.message = "short"})};
}

}  // namespace

const Target kCauseFrame{"cause_frame", run, seeds};

}  // namespace farandole::fuzz

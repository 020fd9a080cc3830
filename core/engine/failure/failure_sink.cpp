#include "engine/failure/failure_sink.h"

namespace rueda {

Error lost_error(const Peers& peers, Rank rank, std::string_view how) {
  return Error{.code = Code::PeerLost,
               .message = peers.describe(rank) + " is " + std::string(how),
               .peer = rank};
}

void tell_whose(Error& error, Rank rank, const Peers& peers) {
  if (error.peer < 0) error.peer = rank;
  error.message = error.what();
  error.cause = nullptr;
  // The layers below know a peer by its rank alone; the host is added here.
  const std::string bare = "rank " + std::to_string(error.peer);
  if (error.peer != rank && error.message.starts_with(bare + " ")) {
    error.message.replace(0, bare.size(), peers.describe(error.peer));
  }
  if (!error.tensor.empty()) error.message = error.tensor + ": " + error.message;
  error.message = peers.describe(rank) + ": " + error.message;
}

void pass_on(std::span<const std::byte> frame, Rank but, Peers& peers, FailureSink& failures,
             TimePoint now) {
  for (auto& neighbour : peers.neighbours()) {
    if (neighbour.rank == but) continue;
    auto sent = neighbour.channel->post(frame);
    if (!sent)
      failures.report_loss(neighbour.rank, std::move(sent).error(), Evidence::Control, now);
  }
}

}  // namespace rueda

#include "engine/failure/failure_sink.h"

#include <algorithm>
#include <utility>

namespace farandole {

namespace {

std::string_view words_of(Loss how) noexcept {
  switch (how) {
    case Loss::ConnectionEnded:
      return "gone: its connection has ended";
    case Loss::ProcessEnded:
      return "gone: its process has ended";
    case Loss::ConnectionsClosed:
      return "gone: it has closed its connections, though its process lives";
    case Loss::DescriptorsClosed:
      return "gone: it has closed the descriptors of its connections (os.closerange?)";
    case Loss::Other:
      break;
  }
  return "gone";
}

}  // namespace

Error lost_error(const Peers& peers, Rank rank, Loss how) {
  Error error = lost_error(peers, rank, words_of(how));
  error.loss = how;
  return error;
}

Error lost_error(const Peers& peers, Rank rank, std::string_view how) {
  return Error{.code = Code::PeerLost,
               .message = peers.describe(rank) + " is " + std::string(how),
               .peer = rank};
}

void tell_whose(Error& error, Rank rank, const Peers& peers) {
  if (error.peer < 0) error.peer = rank;
  // The layers below know a peer by its rank alone; the host is added here.
  const bool by_peer = std::exchange(error.by_peer, false);
  error.message = error.what();
  error.cause = nullptr;
  if (by_peer) error.message = peers.describe(error.peer) + " " + error.message;
  if (!error.tensor.empty()) error.message = error.tensor + ": " + error.message;
  error.message = peers.describe(rank) + ": " + error.message;
}

void pass_on(std::span<const std::byte> frame, Rank but, Peers& peers, FailureSink& failures,
             TimePoint now, const std::vector<Rank>* only) {
  for (auto& neighbour : peers.neighbours()) {
    if (neighbour.rank == but) continue;
    if (only != nullptr && std::ranges::find(*only, neighbour.rank) == only->end()) continue;
    auto sent = neighbour.channel->post(frame);
    if (!sent)
      failures.report_loss(neighbour.rank, std::move(sent).error(), Evidence::Control, now);
  }
}

}  // namespace farandole

#include "engine/failure/cause.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "text.h"

namespace farandole {

namespace {

using std::chrono::milliseconds;

/// How long the rank that decides waits for stronger evidence.
constexpr Duration patience(Evidence evidence) noexcept {
  switch (evidence) {
    case Evidence::Certain:
      return Duration::zero();
    case Evidence::Control:
      // A rank sends a cause before it closes a control connection, so this process has ended. It
      // may have ended because of another one that ended just before.
      return milliseconds(50);
    case Evidence::Data:
      return milliseconds(100);
  }
  return Duration::zero();
}

/// How long other ranks wait for the decision of rank 0, if nobody may be silent.
constexpr auto kDecisionGrace = milliseconds(200);

constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxMissing = 1024;

// Frame: mark, code, evidence, loss (1 byte each), peer (4), waited in seconds (8), three counts (4
// each), then missing ranks (4 each), tensor, text. Little endian: hosts of other byte orders are
// not supported.
struct [[gnu::packed]] Head {
  std::uint8_t mark;
  std::uint8_t code;
  std::uint8_t evidence;
  std::uint8_t loss;
  std::int32_t peer;
  double waited_s;
  std::uint32_t missing;
  std::uint32_t tensor_bytes;
  std::uint32_t text_bytes;
};

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

bool CauseFinder::hear(Error error, Evidence evidence, bool has_parent, TimePoint now) {
  if (best_ && evidence <= best_->evidence) return false;
  if (!best_) since_ = now;
  has_parent_ = has_parent;
  best_ = Finding{.error = std::move(error), .evidence = evidence};
  return true;
}

TimePoint CauseFinder::deadline() const noexcept {
  if (!has_parent_) return since_ + patience(best_->evidence);
  const bool certain = best_->evidence == Evidence::Certain;
  return since_ + kDecisionGrace + (certain ? Duration::zero() : silence_);
}

std::vector<std::byte> encode_cause(const Error& error, Evidence evidence) {
  const std::string whole = error.what();
  const std::string_view text = utf8_prefix(whole, kMaxText);
  const std::string_view tensor = utf8_prefix(error.tensor, kMaxText);
  const std::size_t missing = std::min(error.missing.size(), kMaxMissing);
  const Head head{.mark = static_cast<std::uint8_t>(kCauseFrame),
                  .code = static_cast<std::uint8_t>(error.code),
                  .evidence = static_cast<std::uint8_t>(evidence),
                  .loss = static_cast<std::uint8_t>(error.loss),
                  .peer = error.peer,
                  .waited_s = error.waited_s,
                  .missing = static_cast<std::uint32_t>(missing),
                  .tensor_bytes = static_cast<std::uint32_t>(tensor.size()),
                  .text_bytes = static_cast<std::uint32_t>(text.size())};
  std::vector<std::byte> frame(sizeof head + missing * sizeof(Rank) + tensor.size() + text.size());
  std::byte* at = frame.data();
  auto put = [&at](const void* data, std::size_t bytes) {
    if (bytes != 0) std::memcpy(at, data, bytes);
    at += bytes;
  };
  put(&head, sizeof head);
  put(error.missing.data(), missing * sizeof(Rank));
  put(tensor.data(), tensor.size());
  put(text.data(), text.size());
  return frame;
}

std::optional<CauseFinder::Finding> decode_cause(std::span<const std::byte> frame) {
  Head head{};
  if (frame.size() < sizeof head || frame.front() != kCauseFrame) return std::nullopt;
  std::memcpy(&head, frame.data(), sizeof head);
  const bool sane = head.code <= static_cast<std::uint8_t>(Code::Internal) &&
                    head.evidence <= static_cast<std::uint8_t>(Evidence::Certain) &&
                    head.loss <= static_cast<std::uint8_t>(Loss::DescriptorsClosed) &&
                    head.missing <= kMaxMissing && head.tensor_bytes <= kMaxText &&
                    head.text_bytes <= kMaxText &&
                    frame.size() == sizeof head + head.missing * sizeof(Rank) + head.tensor_bytes +
                                        head.text_bytes;
  if (!sane) return std::nullopt;
  Error error{.code = static_cast<Code>(head.code),
              .peer = head.peer,
              .loss = static_cast<Loss>(head.loss),
              .waited_s = head.waited_s};
  const std::byte* at = frame.data() + sizeof head;
  error.missing.resize(head.missing);
  if (head.missing != 0) std::memcpy(error.missing.data(), at, head.missing * sizeof(Rank));
  at += head.missing * sizeof(Rank);
  error.tensor.assign(reinterpret_cast<const char*>(at), head.tensor_bytes);
  at += head.tensor_bytes;
  error.message.assign(reinterpret_cast<const char*>(at), head.text_bytes);
  return CauseFinder::Finding{.error = std::move(error),
                              .evidence = static_cast<Evidence>(head.evidence)};
}

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

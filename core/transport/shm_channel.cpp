#include "transport/control_channel.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace farandole {
namespace {

using Length = std::uint32_t;
constexpr std::size_t kLengthBytes = sizeof(Length);
constexpr std::size_t kMaxMessageBytes = std::size_t{16} << 20;

std::array<std::byte, kLengthBytes> frame_of(std::size_t size) noexcept {
  const auto length = static_cast<Length>(size);
  std::array<std::byte, kLengthBytes> frame{};
  std::memcpy(frame.data(), &length, kLengthBytes);
  return frame;
}

}  // namespace

ShmChannel::ShmChannel(const Edge& edge)
    : peer_rank_(edge.peer_rank),
      bell_(edge.bell),
      out_(edge.own.messages_to(edge.peer_index)),
      in_(edge.peer.messages_to(edge.own_index)) {}

ShmChannel::~ShmChannel() {
  out_.close();
  bell_.ring();
}

Error ShmChannel::broken(const Error& error) const {
  Error with_peer = error;
  with_peer.peer = peer_rank_;
  return Error::wrap(std::move(with_peer),
                     "Control messages with rank " + std::to_string(peer_rank_));
}

Result<void> ShmChannel::send(std::span<const std::byte> message) {
  if (message.empty() || message.size() > kMaxMessageBytes) {
    Error error;
    error.message = "A control message of " + std::to_string(message.size()) + " bytes";
    return error;
  }
  if (queued_bytes_ + kLengthBytes + message.size() > kMaxControlBacklog) {
    return takes_nothing(peer_rank_);
  }
  const auto frame = frame_of(message.size());
  std::size_t placed = 0;
  if (queue_.empty()) {
    auto length = out_.put(frame);
    if (!length) return broken(length.error());
    placed = *length;
    if (placed == kLengthBytes) {
      auto content = out_.put(message);
      if (!content) return broken(content.error());
      placed += *content;
    }
    unannounced_ |= out_.publish();
    if (placed == kLengthBytes + message.size()) return {};
    front_sent_ = placed;
  }
  std::vector<std::byte> framed(kLengthBytes + message.size());
  std::memcpy(framed.data(), frame.data(), kLengthBytes);
  std::memcpy(framed.data() + kLengthBytes, message.data(), message.size());
  queued_bytes_ += framed.size();
  queue_.push_back(std::move(framed));
  return {};
}

Result<void> ShmChannel::flush() {
  while (!queue_.empty()) {
    auto placed = out_.put(std::span<const std::byte>(queue_.front()).subspan(front_sent_));
    if (!placed) return broken(placed.error());
    unannounced_ |= out_.publish();
    front_sent_ += *placed;
    if (front_sent_ == queue_.front().size()) {
      queued_bytes_ -= queue_.front().size();
      queue_.pop_front();
      front_sent_ = 0;
    } else if (out_.want_room()) {
      break;
    }
  }
  if (std::exchange(unannounced_, false)) bell_.ring();
  return {};
}

Result<std::optional<std::span<const std::byte>>> ShmChannel::receive() {
  const bool closed =
      in_.closed();  // read before the data: what was sent before the close is still there
  if (received_ == kLengthBytes + message_.size() && received_ > kLengthBytes) {
    received_ = 0;  // the message that the previous call returned
    message_.clear();
  }
  std::size_t taken = 0;
  if (received_ < kLengthBytes) {
    auto head = in_.take(std::span(length_).subspan(received_));
    if (!head) return broken(head.error());
    received_ += *head;
    taken += *head;
    if (received_ == kLengthBytes) {
      Length length = 0;
      std::memcpy(&length, length_.data(), kLengthBytes);
      if (length == 0 || length > kMaxMessageBytes) {
        received_ = 0;
        Error error;
        error.message = "A message says that it has " + std::to_string(length) + " bytes.";
        return broken(error);
      }
      message_.resize(length);
    }
  }
  if (received_ >= kLengthBytes) {
    auto body = in_.take(std::span(message_).subspan(received_ - kLengthBytes));
    if (!body) return broken(body.error());
    received_ += *body;
    taken += *body;
  }
  if (in_.release()) bell_.ring();
  if (received_ >= kLengthBytes && received_ == kLengthBytes + message_.size()) {
    return std::optional(std::span<const std::byte>(message_));
  }
  if (closed && taken == 0) {
    Error error;
    error.code = Code::PeerLost;
    error.message = "The peer closed the channel.";
    return broken(error);
  }
  return std::optional<std::span<const std::byte>>();
}

bool ShmChannel::ready() const {
  return in_.has_data() || in_.closed() || (!queue_.empty() && out_.has_room());
}

}  // namespace farandole

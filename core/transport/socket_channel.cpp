#include "transport/control_channel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "transport/little_endian.h"

namespace farandole {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

}  // namespace

Result<void> SocketChannel::send(std::span<const std::byte> message) {
  if (message.empty() || message.size() > kMaxControlMessage) {
    Error error;
    error.message = "a control message of " + std::to_string(message.size()) +
                    " bytes cannot be sent to rank " + std::to_string(socket_.peer());
    error.peer = socket_.peer();
    return error;
  }
  if (outgoing_.size() - sent_ + kLengthBytes + message.size() > kMaxControlBacklog) {
    return takes_nothing(socket_.peer());
  }
  const std::size_t end = outgoing_.size();
  outgoing_.resize(end + kLengthBytes);
  store_little_endian(outgoing_.data() + end, static_cast<std::uint32_t>(message.size()));
  outgoing_.insert(outgoing_.end(), message.begin(), message.end());
  return {};
}

Result<void> SocketChannel::flush() {
  while (congested()) {
    const iovec part{outgoing_.data() + sent_, outgoing_.size() - sent_};
    auto taken = socket_.write({&part, 1});
    if (!taken) return std::move(taken).error();
    if (*taken == 0) break;
    sent_ += *taken;
  }
  if (!congested()) {
    outgoing_.clear();
    sent_ = 0;
  } else if (sent_ > outgoing_.size() / 2) {  // amortized, each byte is moved once at most
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
  }
  return {};
}

Result<std::optional<std::span<const std::byte>>> SocketChannel::next_message() {
  const std::size_t arrived = filled_ - taken_;
  if (arrived < kLengthBytes) return std::optional<std::span<const std::byte>>{};
  const std::size_t bytes = load_little_endian<std::uint32_t>(incoming_.data() + taken_);
  if (bytes == 0 || bytes > kMaxControlMessage) {
    Error error;
    error.message = "rank " + std::to_string(socket_.peer()) +
                    " sent a control message with the impossible length of " +
                    std::to_string(bytes) + " bytes";
    error.peer = socket_.peer();
    return error;
  }
  if (arrived < kLengthBytes + bytes) return std::optional<std::span<const std::byte>>{};
  const std::span<const std::byte> message(incoming_.data() + taken_ + kLengthBytes, bytes);
  taken_ += kLengthBytes + bytes;
  return std::optional(message);
}

Result<std::optional<std::span<const std::byte>>> SocketChannel::receive() {
  for (;;) {
    if (broken_ && taken_ == filled_) return *broken_;
    auto message = next_message();
    if (!message) {
      broken_ = message.error();
      taken_ = filled_;
      return message;
    }
    if (*message) return message;
    if (broken_) {  // the rest is part of a message that never becomes complete
      taken_ = filled_;
      return *broken_;
    }

    if (taken_ != 0) {
      std::copy(incoming_.begin() + static_cast<std::ptrdiff_t>(taken_),
                incoming_.begin() + static_cast<std::ptrdiff_t>(filled_), incoming_.begin());
      filled_ -= taken_;
      taken_ = 0;
    }
    if (incoming_.size() - filled_ < kReadBytes / 2) {
      incoming_.resize(std::max(kReadBytes, 2 * incoming_.size()));
    }
    const iovec part{incoming_.data() + filled_, incoming_.size() - filled_};
    auto got = socket_.read({&part, 1});
    if (!got) {
      broken_ = std::move(got).error();
      if (filled_ != 0) broken_->message += " in the middle of a control message";
    } else if (*got == 0) {
      return std::optional<std::span<const std::byte>>{};
    } else {
      filled_ += *got;
    }
  }
}

bool SocketChannel::ready() const { return has_message() || socket_.ready(wants().events); }

bool SocketChannel::has_message() const {
  if (broken_ || socket_.holds()) return true;
  const std::size_t arrived = filled_ - taken_;
  if (arrived >= kLengthBytes) {
    const std::size_t bytes = load_little_endian<std::uint32_t>(incoming_.data() + taken_);
    // An impossible length counts as ready: receive() returns the error.
    if (bytes > kMaxControlMessage || arrived >= kLengthBytes + bytes) return true;
  }
  return false;
}

pollfd SocketChannel::wants() const noexcept {
  return {.fd = socket_.fd(),
          .events = static_cast<short>(congested() ? POLLIN | POLLOUT : POLLIN),
          .revents = 0};
}

}  // namespace farandole

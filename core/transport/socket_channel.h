/// Control messages over a stream socket: four bytes of length (little endian), then the message.
#pragma once

#include <poll.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "transport/control_channel.h"
#include "transport/socket.h"

namespace farandole {

/// A limit against hostile or corrupt lengths. It is not a buffer size: buffers grow with the bytes
/// that have arrived.
inline constexpr std::size_t kMaxControlMessage = std::size_t{16} << 20;

class SocketChannel final : public ControlChannel {
 public:
  explicit SocketChannel(Socket socket) : socket_(std::move(socket)) {}

  Result<void> send(std::span<const std::byte> message) override;
  Result<void> flush() override;
  Result<std::optional<std::span<const std::byte>>> receive() override;
  [[nodiscard]] bool ready() const override;
  /// ready(), as far as it is known without a question to the kernel.
  [[nodiscard]] bool has_message() const;
  [[nodiscard]] bool congested() const override { return sent_ < outgoing_.size(); }

  /// See Socket::persist().
  void persist() noexcept { socket_.persist(); }

  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  /// The poll() entry for a sleeping rank: readable, and writable while congested().
  [[nodiscard]] pollfd wants() const noexcept;

 private:
  /// The first message in incoming_, if it is complete.
  [[nodiscard]] Result<std::optional<std::span<const std::byte>>> next_message();

  Socket socket_;
  std::vector<std::byte> outgoing_;  // frames; [sent_, size) still has to go
  std::size_t sent_ = 0;
  std::vector<std::byte> incoming_;  // [taken_, filled_) has arrived and was not handed out
  std::size_t taken_ = 0;
  std::size_t filled_ = 0;
  std::optional<Error> broken_;  // why nothing more will arrive
};

}  // namespace farandole

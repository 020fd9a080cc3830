/// Reading the memory of another process of this host without its help.
///
/// Whether that is allowed depends on the machine: security modules, containers, filters of system
/// calls, namespaces of processes. So every rank leaves a card in its segment that says where a
/// number lies in its memory which nobody can guess. Who finds that number there can read that rank
/// and has the right process. Nothing is ever written into another process.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "result.h"
#include "transport/shm_layout.h"

namespace rueda {

/// Does not own the descriptors.
class PeerMemory {
 public:
  /// Out of reach.
  PeerMemory() = default;
  /// Of the process at the other end of `liveness`, a connected Unix socket. Out of reach if this
  /// process cannot name it, or could not notice its end (`pidfd` -1; needless for itself).
  [[nodiscard]] static PeerMemory of(int pidfd, int liveness) noexcept;
  /// Of this process, for ranks that are threads.
  [[nodiscard]] static PeerMemory own() noexcept;

  [[nodiscard]] bool reachable() const noexcept { return pid_ > 0; }

  struct Part {
    std::byte* here;
    std::uint64_t there;  ///< address in the other process
    std::size_t bytes;
  };
  /// Most parts of one call.
  static constexpr std::size_t kParts = 64;
  /// 0, or the errno of what went wrong; then anything may be in the parts. Only if the process is
  /// alive afterwards were these its bytes: the number of an ended process is given to others.
  [[nodiscard]] int read(std::span<const Part> parts) const noexcept;
  [[nodiscard]] bool alive() const noexcept;

 private:
  pid_t pid_ = 0;
  int pidfd_ = -1;
  int liveness_ = -1;
  bool self_ = false;
};

/// The number that proves whose memory is read. Lies in private memory, and stays where it is.
class MemoryToken {
 public:
  [[nodiscard]] static Result<MemoryToken> make();
  /// Says in the own segment where it is. All of that happens before anybody hears of this rank
  /// through the engine.
  void publish(MemoryCard& card) const noexcept;

 private:
  explicit MemoryToken(std::unique_ptr<std::array<std::uint64_t, 2>> number) noexcept
      : number_(std::move(number)) {}
  std::unique_ptr<std::array<std::uint64_t, 2>> number_;
};

/// `memory` can be read, and is that of the owner of `card`. False if that one left no card.
[[nodiscard]] bool proven(const PeerMemory& memory, const MemoryCard& card) noexcept;

}  // namespace rueda

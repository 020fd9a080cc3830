/// Reads the memory of another process of this host (process_vm_readv).
///
/// Whether this is allowed depends on the machine: security modules, containers, system call
/// filters, process namespaces. So every rank keeps a random number in its private memory, and
/// leaves a card in its segment with the number and its address. A rank that reads the same number
/// there may read that process, and has the right one. Nothing is ever written into another
/// process.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "result.h"
#include "transport/shm_layout.h"

namespace farandole {

/// Does not own the descriptors.
class PeerMemory {
 public:
  /// Cannot be read.
  PeerMemory() = default;
  /// Of the process at the other end of `liveness`, a connected Unix socket. Cannot be read if that
  /// process has no number in this namespace, or if its end could not be noticed (`pidfd` -1; not
  /// needed for this process itself).
  [[nodiscard]] static PeerMemory of(int pidfd, int liveness) noexcept;
  /// Of this process, for ranks that are threads.
  [[nodiscard]] static PeerMemory own() noexcept;

  [[nodiscard]] bool reachable() const noexcept { return pid_ > 0; }

  struct Part {
    std::byte* here;
    std::uint64_t there;  ///< address in the other process
    std::size_t bytes;
  };
  /// The largest number of parts of one call.
  static constexpr std::size_t kParts = 64;
  /// Returns 0, or an errno; then the contents of the parts are undefined. The bytes only count if
  /// the process is alive afterwards, because the number of an ended process is reused.
  [[nodiscard]] int read(std::span<const Part> parts) const noexcept;
  [[nodiscard]] bool alive() const noexcept;

 private:
  pid_t pid_ = 0;
  int pidfd_ = -1;
  int liveness_ = -1;
  bool self_ = false;
};

/// The random number that proves whose memory is read. Lies in private memory at a fixed address.
class MemoryToken {
 public:
  [[nodiscard]] static Result<MemoryToken> make();
  /// Writes its address to this rank's segment. Called before any peer hears of this rank through
  /// the engine.
  void publish(MemoryCard& card) const noexcept;

 private:
  explicit MemoryToken(std::unique_ptr<std::array<std::uint64_t, 2>> number) noexcept
      : number_(std::move(number)) {}
  std::unique_ptr<std::array<std::uint64_t, 2>> number_;
};

/// True if `memory` can be read and belongs to the owner of `card`. False if that rank left no
/// card.
[[nodiscard]] bool proven(const PeerMemory& memory, const MemoryCard& card) noexcept;

}  // namespace farandole

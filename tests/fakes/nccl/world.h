/// What the ranks of a communicator share: a file in memory, mapped by each rank for itself.
///
/// The maker of a unique id makes the file; the id says how the others open it, through /proc. Two
/// ranks of one process have two mappings, so the thread sanitizer sees each as a rank of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace farandole::fakes {

inline constexpr int kMostRanks = 64;
inline constexpr std::size_t kChunk = std::size_t{64} << 10U;

/// What a unique id holds.
struct WorldId {
  std::uint64_t magic;
  std::int64_t process;
  std::int64_t descriptor;
};

/// What a rank is about to do; all must agree.
struct Description {
  std::int32_t kind = 0, type = 0, op = 0, root = 0;
  std::uint64_t count = 0;
  friend bool operator==(const Description&, const Description&) = default;
};

class World {
 public:
  /// False: no file can be made.
  [[nodiscard]] static bool make(WorldId& id);
  /// nullptr: no such world, or its maker has ended.
  [[nodiscard]] static std::shared_ptr<World> open(const WorldId& id, int rank, int size,
                                                   const std::atomic<bool>& aborted);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  /// Waits for all ranks; a result of NCCL, ncclInternalError if it was aborted.
  [[nodiscard]] int join(const std::string& device);
  /// Waits until all ranks came here as often. False: aborted.
  [[nodiscard]] bool meet();
  /// The same, and all must say the same. False: aborted; `agree` tells the rest.
  [[nodiscard]] bool meet(const Description& description, bool& agree);
  /// Waits until `ready`, which is asked again after each change. False: aborted.
  [[nodiscard]] bool wait(const std::function<bool()>& ready) const;
  /// Makes all waits look again.
  void changed() const;

  /// kChunk bytes that this rank or another one shows to all.
  [[nodiscard]] std::byte* shown(int rank) const noexcept;

  /// Chunks on the way from one rank to another; at most one at a time.
  struct Mailbox {
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint64_t> drained;
    std::uint64_t message_bytes;  ///< of the whole message that the chunk is a part of
    std::byte data[kChunk];
  };
  [[nodiscard]] Mailbox& mailbox(int from, int to) const noexcept;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

 private:
  struct Shared;
  World(Shared* shared, const WorldId& id, int rank, int size, const std::atomic<bool>& aborted);
  [[nodiscard]] int look_at_members(bool shared_devices) const;

  Shared* shared_;
  const WorldId id_;
  const int rank_;
  const int size_;
  const std::atomic<bool>& aborted_;
  std::uint64_t meetings_ = 0;
};

}  // namespace farandole::fakes

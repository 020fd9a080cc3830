#include "backends/shm_pipes.h"

#include <string>

namespace rueda {

/// What both directions share: turns, and the count of bytes that are done.
class ShmPipes::Transfer : public Operation {
 public:
  Transfer(Peer& peer, Turns& turns, std::size_t bytes) noexcept
      : peer_(peer), turns_(turns), turn_(turns.given++), bytes_(bytes) {}
  ~Transfer() override {
    if (!complete_) turns_.broken = true;
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  Result<Step> step() final {
    if (turns_.broken) {
      Error error;
      error.message =
          "An earlier transfer with rank " + std::to_string(peer_.rank) + " was given up half-way.";
      error.peer = peer_.rank;
      return error;
    }
    if (turns_.current != turn_) return Step::Blocked;
    auto moved = moved_bytes_ == bytes_ ? Result<std::size_t>(std::size_t{0}) : move(moved_bytes_);
    if (!moved) {
      Error error = moved.error();
      error.peer = peer_.rank;
      return error;
    }
    moved_bytes_ += *moved;
    if (moved_bytes_ == bytes_) {
      complete_ = true;
      ++turns_.current;
      return Step::Done;
    }
    return *moved > 0 ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const final { return {peer_.rank}; }

 protected:
  [[nodiscard]] Peer& peer() const noexcept { return peer_; }

 private:
  /// Moves what can be moved now of the bytes from `begin` on, and returns how many.
  virtual Result<std::size_t> move(std::size_t begin) = 0;

  Peer& peer_;
  Turns& turns_;
  std::uint64_t turn_;
  std::size_t bytes_;
  std::size_t moved_bytes_ = 0;
  bool complete_ = false;
};

class ShmPipes::Send final : public Transfer {
 public:
  Send(Peer& peer, std::span<const std::byte> data) noexcept
      : Transfer(peer, peer.sends, data.size()), data_(data) {}

 private:
  Result<std::size_t> move(std::size_t begin) override {
    const auto rest = data_.subspan(begin);
    auto placed = peer().out.put(rest);
    // Full: ask for a bell, and look again in case the reader did not see that.
    if (placed && *placed == 0 && !peer().out.want_room()) placed = peer().out.put(rest);
    if (peer().out.publish()) peer().bell.ring();
    return placed;
  }

  std::span<const std::byte> data_;
};

class ShmPipes::Recv final : public Transfer {
 public:
  Recv(Peer& peer, std::span<std::byte> data) noexcept
      : Transfer(peer, peer.recvs, data.size()), data_(data) {}

 private:
  Result<std::size_t> move(std::size_t begin) override {
    auto taken = peer().in.take(data_.subspan(begin));
    if (peer().in.release()) peer().bell.ring();
    return taken;
  }

  std::span<std::byte> data_;
};

ShmPipes::ShmPipes(const std::vector<Rank>& ranks, const std::vector<ShmMember>& members, int self)
    : peers_(members.size()) {
  const ShmMember& own = members[static_cast<std::size_t>(self)];
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (static_cast<int>(i) == self) continue;
    const ShmMember& other = members[i];
    peers_[i].rank = ranks[i];
    peers_[i].bell = other.bell;
    peers_[i].out = RingWriter(own.segment.pipe_to(other.local_index));
    peers_[i].in = RingReader(other.segment.pipe_to(own.local_index));
  }
}

std::unique_ptr<Operation> ShmPipes::send(int to, std::span<const std::byte> data) {
  return std::make_unique<Send>(peers_[static_cast<std::size_t>(to)], data);
}

std::unique_ptr<Operation> ShmPipes::recv(int from, std::span<std::byte> data) {
  return std::make_unique<Recv>(peers_[static_cast<std::size_t>(from)], data);
}

}  // namespace rueda

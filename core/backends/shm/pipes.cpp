#include "backends/shm/pipes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "backends/operation.h"

namespace farandole {

/// What both directions share: turns, and the count of bytes that are done. The operation goes in
/// front, as so many bytes in the byte order of the machine.
class ShmPipes::Transfer : public Operation {
 public:
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
  using Head = std::array<std::byte, sizeof(OperationTag)>;

  /// `bytes`: of the data.
  Transfer(Peer& peer, Turns& turns, std::size_t bytes) noexcept
      : peer_(peer),
        turns_(turns),
        turn_(turns.given++),
        bytes_(bytes == 0 ? 0 : sizeof(Head) + bytes) {}

  [[nodiscard]] Peer& peer() const noexcept { return peer_; }

 private:
  /// Moves what can be moved now of head and data from `begin` on, and returns how many bytes.
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
  Send(Peer& peer, std::span<const std::byte> data, OperationTag operation) noexcept
      : Transfer(peer, peer.sends, data.size()),
        head_(std::bit_cast<Head>(operation)),
        data_(data) {}

 private:
  Result<std::size_t> move(std::size_t begin) override {
    auto placed = put(begin);
    // The ring is full: ask for a bell, then check again, in case the reader made room before it
    // saw the request.
    if (placed && *placed == 0 && !peer().out.want_room()) placed = put(begin);
    if (peer().out.publish()) peer().bell.ring();
    return placed;
  }

  Result<std::size_t> put(std::size_t begin) {
    std::size_t head = 0;
    if (begin < head_.size()) {
      auto placed = peer().out.put(std::span(head_).subspan(begin));
      if (!placed || begin + *placed < head_.size()) return placed;
      head = *placed;
      begin = head_.size();
    }
    auto placed = peer().out.put(data_.subspan(begin - head_.size()));
    if (placed) *placed += head;
    return placed;
  }

  const Head head_;
  std::span<const std::byte> data_;
};

class ShmPipes::Recv final : public Transfer {
 public:
  Recv(Peer& peer, std::span<std::byte> data, OperationTag operation) noexcept
      : Transfer(peer, peer.recvs, data.size()), data_(data), operation_(operation) {}

 private:
  Result<std::size_t> move(std::size_t begin) override {
    auto taken = take(begin);
    if (peer().in.release()) peer().bell.ring();
    return taken;
  }

  /// Reads the tag first: no data are taken before it matches.
  Result<std::size_t> take(std::size_t begin) {
    std::size_t head = 0;
    if (begin < head_.size()) {
      auto taken = peer().in.take(std::span(head_).subspan(begin));
      if (!taken || begin + *taken < head_.size()) return taken;
      const auto theirs = std::bit_cast<OperationTag>(head_);
      if (theirs != operation_) return mixed_up(peer().rank, theirs, operation_);
      head = *taken;
      begin = head_.size();
    }
    auto taken = peer().in.take(data_.subspan(begin - head_.size()));
    if (taken) *taken += head;
    return taken;
  }

  Head head_{};
  std::span<std::byte> data_;
  const OperationTag operation_;
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
  return std::make_unique<Send>(peers_[static_cast<std::size_t>(to)], data, operation_);
}

std::unique_ptr<Operation> ShmPipes::recv(int from, std::span<std::byte> data) {
  return std::make_unique<Recv>(peers_[static_cast<std::size_t>(from)], data, operation_);
}

PipesBackend::PipesBackend(Members members, std::shared_ptr<ShmPipes> pipes,
                           std::vector<int> local_indices)
    : Backend(std::move(members)),
      pipes_(std::move(pipes)),
      local_indices_(std::move(local_indices)) {}

std::string_view PipesBackend::path(Kind kind, std::size_t /*bytes*/) const noexcept {
  return kind == Kind::Broadcast ? "pipes.tree" : "pipes.direct";
}

std::unique_ptr<Operation> PipesBackend::send(int peer, std::span<const std::byte> data) {
  if (peer < 0 || peer >= members().size() || peer == members().self) {
    return failed_operation(Code::InvalidArgument, "No member to send to: " + std::to_string(peer));
  }
  return pipes_->send(local_indices_[static_cast<std::size_t>(peer)], data);
}

std::unique_ptr<Operation> PipesBackend::recv(int peer, std::span<std::byte> data) {
  if (peer < 0 || peer >= members().size() || peer == members().self) {
    return failed_operation(Code::InvalidArgument,
                            "No member to receive from: " + std::to_string(peer));
  }
  return pipes_->recv(local_indices_[static_cast<std::size_t>(peer)], data);
}

std::vector<int> local_indices(const ShmHost& host, std::span<const Rank> ranks) {
  std::vector<int> indices;
  for (const Rank rank : ranks) {
    const auto at = std::find(host.ranks.begin(), host.ranks.end(), rank);
    indices.push_back(static_cast<int>(at - host.ranks.begin()));
  }
  return indices;
}

Result<std::unique_ptr<Backend>> open_pipes(Members members, int /*channel*/,
                                            const Resources& resources) {
  auto indices = local_indices(resources.host, members.ranks);
  return std::unique_ptr<Backend>(
      std::make_unique<PipesBackend>(std::move(members), resources.pipes, std::move(indices)));
}

}  // namespace farandole

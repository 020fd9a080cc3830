/// Many sends and receives of one collective, in flight together.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"

namespace farandole {

/// Transfers with one peer complete in the order in which they were posted, so only the first of
/// each queue is stepped. Every step advances sends and receives. So, however small the socket
/// buffers are, no rank waits for room while it leaves bytes unread.
class Transfers {
 public:
  explicit Transfers(Backend& backend)
      : backend_(backend),
        sends_(static_cast<std::size_t>(backend.members().size())),
        recvs_(static_cast<std::size_t>(backend.members().size())) {}

  /// `pending` counts incomplete transfers, and outlives them. Empty transfers are skipped, because
  /// both ends know the length.
  void send(int peer, std::span<const std::byte> data, int& pending);
  void recv(int peer, std::span<std::byte> data, int& pending);

  /// True if anything moved.
  [[nodiscard]] Result<bool> step();
  /// One step of an operation that consists of transfers and of work between them. `advance` does
  /// what can be done now and returns whether it did anything; `complete` returns whether all is
  /// done.
  template <typename Advance, typename Complete>
  [[nodiscard]] Result<Step> drive(Advance advance, Complete complete) {
    bool moved = advance();
    auto exchanged = step();
    if (!exchanged) return std::move(exchanged).error();
    moved = moved || *exchanged;
    if (*exchanged && advance()) moved = true;
    if (complete()) return Step::Done;
    return moved ? Step::Advanced : Step::Blocked;
  }
  /// Global ranks of those whose transfers are not complete, ascending.
  [[nodiscard]] std::vector<Rank> waiting_for() const;

 private:
  struct Transfer {
    std::unique_ptr<Operation> operation;
    int* pending;
  };
  struct Queue {
    std::vector<Transfer> transfers;  // [done, size) are not complete
    std::size_t done = 0;
    void push(std::unique_ptr<Operation> operation, int& pending);
    [[nodiscard]] bool empty() const noexcept { return done == transfers.size(); }
    [[nodiscard]] Result<bool> step();
  };

  Backend& backend_;
  std::vector<Queue> sends_;  // by set rank
  std::vector<Queue> recvs_;
};

}  // namespace farandole

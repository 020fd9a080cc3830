#include "backends/tcp.h"

#include <string>

#include "backends/failed_operation.h"
#include "backends/paired_allreduce.h"

namespace rueda {
namespace {

constexpr std::size_t kDoublingBytes = std::size_t{16} << 10;
constexpr std::size_t kWindowBytes = std::size_t{512} << 10;

/// One transfer over a link. Holds the mesh, so that the link is there as long as the transfer.
template <bool sending>
class LinkTransfer final : public Operation {
 public:
  LinkTransfer(std::shared_ptr<Mesh> mesh, PeerLink& link, PeerLink::Ticket ticket)
      : mesh_(std::move(mesh)), link_(link), ticket_(ticket) {}
  ~LinkTransfer() override {
    if constexpr (sending) {
      link_.forget_send(ticket_);
    } else {
      link_.forget_recv(ticket_);
    }
  }

  Result<Step> step() override {
    if (complete()) return Step::Done;
    auto moved = sending ? link_.pump_out() : link_.pump_in();
    if (complete()) return Step::Done;
    if (!moved) return std::move(moved).error();
    return *moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return {link_.peer()}; }

 private:
  [[nodiscard]] bool complete() const {
    return sending ? link_.sent(ticket_) : link_.received(ticket_);
  }

  std::shared_ptr<Mesh> mesh_;
  PeerLink& link_;
  const PeerLink::Ticket ticket_;
};

}  // namespace

TcpBackend::TcpBackend(Members members, std::shared_ptr<Mesh> mesh)
    : Backend(std::move(members)), mesh_(std::move(mesh)) {
  for (const Rank rank : this->members().ranks) links_.push_back(mesh_->link(rank));
}

std::string_view TcpBackend::path(Kind kind, std::size_t bytes) const noexcept {
  if (kind == Kind::Broadcast) return "tcp.tree";
  if (kind != Kind::Allreduce) return "tcp.direct";
  switch (way(bytes)) {
    case Way::Doubling:
      return "tcp.doubling";
    case Way::Halving:
      return "tcp.halving";
    case Way::Direct:
      break;
  }
  return "tcp.direct";
}

/// The same on all members.
TcpBackend::Way TcpBackend::way(std::size_t bytes) const noexcept {
  const int size = members().size();
  const bool each_alone = members().groups.size() == static_cast<std::size_t>(size);
  if (!each_alone || size <= 2) return Way::Direct;
  return bytes <= kDoublingBytes ? Way::Doubling : Way::Halving;
}

std::unique_ptr<Operation> TcpBackend::allreduce(std::span<const Piece> pieces,
                                                 const Reduction& reduction) {
  if (auto refused = refuse(reduction)) return refused;
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  const std::size_t element = size_of(reduction.dtype);
  switch (way(count * element)) {
    case Way::Doubling:
      return paired_allreduce(*this, staging(), pieces, reduction,
                              {.pairing = Pairing::Doubling, .window = count});
    case Way::Halving:
      return paired_allreduce(*this, staging(), pieces, reduction,
                              {.pairing = Pairing::Halving, .window = kWindowBytes / element});
    case Way::Direct:
      break;
  }
  return Backend::allreduce(pieces, reduction);
}

PeerLink* TcpBackend::link(int peer) const noexcept {
  const auto index = static_cast<std::size_t>(peer);
  return peer >= 0 && index < links_.size() ? links_[index] : nullptr;
}

std::unique_ptr<Operation> TcpBackend::unreachable(int peer) const {
  return failed_operation(Code::Unsupported,
                          "there is no network connection to member " + std::to_string(peer));
}

std::unique_ptr<Operation> TcpBackend::send(int peer, std::span<const std::byte> data) {
  PeerLink* const to = link(peer);
  if (to == nullptr) return unreachable(peer);
  return std::make_unique<LinkTransfer<true>>(mesh_, *to, to->post_send(data));
}

std::unique_ptr<Operation> TcpBackend::recv(int peer, std::span<std::byte> data) {
  PeerLink* const from = link(peer);
  if (from == nullptr) return unreachable(peer);
  return std::make_unique<LinkTransfer<false>>(mesh_, *from, from->post_recv(data));
}

}  // namespace rueda

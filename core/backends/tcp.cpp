#include "backends/tcp.h"

#include <string>

#include "backends/failed_operation.h"

namespace rueda {
namespace {

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

std::string_view TcpBackend::path(Kind kind, std::size_t /*bytes*/) const noexcept {
  return kind == Kind::Broadcast ? "tcp.tree" : "tcp.direct";
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

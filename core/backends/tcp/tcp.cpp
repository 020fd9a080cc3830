#include "backends/tcp/tcp.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "backends/algorithms/direct.h"
#include "backends/algorithms/paired_allreduce.h"
#include "backends/operation.h"
#include "rounding.h"

namespace farandole {
namespace {

/// Shorter messages use the first connection alone.
constexpr std::size_t kStripedBytes = std::size_t{64} << 10;
constexpr std::size_t kDoublingBytes = std::size_t{32} << 10;
constexpr std::size_t kWindowBytes = std::size_t{256} << 10;

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

/// One message, in equal parts over all connections to the peer.
class StripedTransfer final : public Operation {
 public:
  explicit StripedTransfer(std::vector<std::unique_ptr<Operation>> parts)
      : parts_(std::move(parts)) {}

  Result<Step> step() override {
    bool moved = false;
    bool whole = true;
    for (auto& part : parts_) {
      if (part == nullptr) continue;
      auto step = part->step();
      if (!step) return step;
      moved = moved || *step != Step::Blocked;
      if (*step == Step::Done) {
        part.reset();
      } else {
        whole = false;
        peer_ = part->waiting_for();
      }
    }
    if (whole) return Step::Done;
    return moved ? Step::Advanced : Step::Blocked;
  }

  std::vector<Rank> waiting_for() const override { return peer_; }

 private:
  std::vector<std::unique_ptr<Operation>> parts_;  // null: complete
  std::vector<Rank> peer_;
};

}  // namespace

TcpBackend::TcpBackend(Members members, std::shared_ptr<Mesh> mesh)
    : Backend(std::move(members)), mesh_(std::move(mesh)) {
  for (const Rank rank : this->members().ranks) links_.push_back(mesh_->links(rank));
}

std::string_view TcpBackend::path(Kind kind, std::size_t bytes) const noexcept {
  if (kind == Kind::Broadcast) {
    return chain_broadcast(bytes, members().size()) ? "tcp.chain" : "tcp.tree";
  }
  if (kind != Kind::Allreduce) return "tcp.direct";
  switch (way(bytes)) {
    case Way::Doubling:
      return "tcp.doubling";
    case Way::Halving:
      return "tcp.halving";
    case Way::Default:
      break;
  }
  return "tcp.direct";
}

/// The same on all members.
TcpBackend::Way TcpBackend::way(std::size_t bytes) const noexcept {
  const int size = members().size();
  const bool each_alone = members().groups.size() == static_cast<std::size_t>(size);
  if (!each_alone || size <= 2) return Way::Default;
  return bytes <= kDoublingBytes ? Way::Doubling : Way::Halving;
}

template <>
std::unique_ptr<Operation> TcpBackend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
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
    case Way::Default:
      break;
  }
  return Backend::start(Allreduce{pieces, reduction});
}

std::unique_ptr<Operation> TcpBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

const std::vector<PeerLink*>& TcpBackend::links(int peer) const noexcept {
  static const std::vector<PeerLink*> none;
  const auto index = static_cast<std::size_t>(peer);
  return peer >= 0 && index < links_.size() ? links_[index] : none;
}

template <bool sending>
std::unique_ptr<Operation> TcpBackend::transfer(int peer, std::span<std::byte> data) {
  const auto& links = this->links(peer);
  if (links.empty()) {
    return failed_operation(Code::Unsupported,
                            "there is no network connection to member " + std::to_string(peer));
  }
  const auto over = [&](PeerLink& link, std::span<std::byte> part) {
    const auto ticket = sending ? link.post_send(part) : link.post_recv(part);
    return std::make_unique<LinkTransfer<sending>>(mesh_, link, ticket);
  };
  if (links.size() == 1 || data.size() < kStripedBytes) return over(*links.front(), data);
  std::vector<std::unique_ptr<Operation>> parts;
  const std::size_t each = ceil_div(data.size(), links.size());
  for (PeerLink* const link : links) {
    const std::size_t begin = std::min(parts.size() * each, data.size());
    parts.push_back(over(*link, data.subspan(begin, std::min(each, data.size() - begin))));
  }
  return std::make_unique<StripedTransfer>(std::move(parts));
}

std::unique_ptr<Operation> TcpBackend::send(int peer, std::span<const std::byte> data) {
  // Links have one kind of span for both ways; they only read from what they send.
  return transfer<true>(peer, {const_cast<std::byte*>(data.data()), data.size()});
}

std::unique_ptr<Operation> TcpBackend::recv(int peer, std::span<std::byte> data) {
  return transfer<false>(peer, data);
}

Result<std::unique_ptr<Backend>> open_tcp(Members members, int /*channel*/,
                                          const Resources& resources) {
  return std::unique_ptr<Backend>(std::make_unique<TcpBackend>(std::move(members), resources.mesh));
}

}  // namespace farandole

#include "transport/mesh.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace farandole {

namespace {

Error wrong(Rank peer, std::string_view what) {
  Error error{.code = Code::InvalidArgument};
  error.peer = peer;
  error.message = std::string(what) + std::to_string(peer);
  return error;
}

}  // namespace

Result<std::shared_ptr<Mesh>> Mesh::open(std::vector<Peer> peers, LateConnections* late) {
  std::shared_ptr<Mesh> mesh(new Mesh(late));
  for (Peer& peer : peers) {
    if (peer.streams.empty() && (peer.absent < 1 || late == nullptr)) {
      return wrong(peer.rank, "no data connection to rank ");
    }
    if (mesh->links_.contains(peer.rank)) {
      return wrong(peer.rank, "data connections given twice for rank ");
    }
    Links& links = mesh->links_[peer.rank];
    const auto count =
        peer.streams.empty() ? static_cast<std::size_t>(peer.absent) : peer.streams.size();
    for (std::size_t i = 0; i < count; ++i) {
      links.push_back(std::make_unique<PeerLink>(peer.rank, *mesh, &mesh->operation_));
    }
    if (peer.streams.empty()) continue;
    LateConnections::Arrival at_once{
        .rank = peer.rank, .streams = std::move(peer.streams), .keys = std::move(peer.keys)};
    if (auto adopted = mesh->adopt(links, at_once); !adopted) return std::move(adopted).error();
  }
  return mesh;
}

Result<void> Mesh::connect(LateConnections::Arrival arrival) {
  const auto found = links_.find(arrival.rank);
  if (found == links_.end()) return wrong(arrival.rank, "nobody waits for connections to rank ");
  Links& links = found->second;
  if (links.front()->connected()) {
    return wrong(arrival.rank, "data connections given twice for rank ");
  }
  Result<void> adopted = {};
  if (!arrival.failure) adopted = adopt(links, arrival);
  if (arrival.failure || !adopted) {
    for (const auto& link : links)
      link->give_up(arrival.failure ? *arrival.failure : adopted.error());
  }
  return adopted;
}

/// All of them, or none.
Result<void> Mesh::adopt(Links& links, LateConnections::Arrival& arrival) {
  if (arrival.streams.size() != links.size()) {
    return wrong(arrival.rank, "not as many data connections as were asked for to rank ");
  }
  if (!arrival.keys.empty() && arrival.keys.size() != links.size()) {
    return wrong(arrival.rank, "not as many keys as data connections to rank ");
  }
  std::vector<Socket> sockets;
  for (std::size_t i = 0; i < links.size(); ++i) {
    auto socket = Socket::adopt(std::move(arrival.streams[i]), arrival.rank,
                                arrival.keys.empty() ? SealKeys{} : arrival.keys[i]);
    if (!socket) return std::move(socket).error();
    sockets.push_back(*std::move(socket));
  }
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i]->connect(std::move(sockets[i]));
    connected_.push_back(links[i].get());
  }
  return {};
}

PeerLink* Mesh::link(Rank rank) const noexcept {
  const auto found = links_.find(rank);
  return found == links_.end() ? nullptr : found->second.front().get();
}

std::vector<PeerLink*> Mesh::links(Rank rank) const {
  std::vector<PeerLink*> all;
  const auto found = links_.find(rank);
  if (found == links_.end()) return all;
  for (const auto& link : found->second) all.push_back(link.get());
  return all;
}

void Mesh::wants(std::vector<pollfd>& polled) const {
  for (const PeerLink* const link : connected_) {
    if (const pollfd entry = link->wants(); entry.fd >= 0) polled.push_back(entry);
  }
}

bool Mesh::busy() const noexcept {
  return std::ranges::any_of(connected_,
                             [](const PeerLink* link) { return link->wants().fd >= 0; });
}

std::vector<int> Mesh::descriptors() const {
  std::vector<int> all;
  for (const PeerLink* const link : connected_) all.push_back(link->fd());
  return all;
}

Result<std::unique_ptr<LateConnections>> LateConnections::open() {
  Fd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell) return Error::system("eventfd", errno);
  return std::unique_ptr<LateConnections>(new LateConnections(std::move(bell)));
}

void LateConnections::ask(Rank rank) noexcept {
  {
    const Lock lock(mutex_);
    if (!known_.insert(rank).second) return;
    asked_.push_back(rank);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
}

std::vector<Rank> LateConnections::asked() {
  std::uint64_t count;
  while (::read(bell_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
  const Lock lock(mutex_);
  return std::exchange(asked_, {});
}

void LateConnections::bring(Arrival arrival) {
  const Lock lock(mutex_);
  arrivals_.push_back(std::move(arrival));
  arrived_.store(true, std::memory_order_seq_cst);
}

std::vector<LateConnections::Arrival> LateConnections::take() {
  const Lock lock(mutex_);
  arrived_.store(false, std::memory_order_seq_cst);
  return std::exchange(arrivals_, {});
}

}  // namespace farandole

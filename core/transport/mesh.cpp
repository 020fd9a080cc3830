#include "transport/mesh.h"

#include <string>

namespace rueda {

Result<std::shared_ptr<Mesh>> Mesh::open(std::vector<Peer> peers) {
  std::shared_ptr<Mesh> mesh(new Mesh);
  for (Peer& peer : peers) {
    Error error;
    error.peer = peer.rank;
    if (peer.streams.empty() || mesh->links_.contains(peer.rank)) {
      error.code = Code::InvalidArgument;
      error.message = (peer.streams.empty() ? "no data connection to rank "
                                            : "data connections given twice for rank ") +
                      std::to_string(peer.rank);
      return error;
    }
    auto socket = Socket::adopt(std::move(peer.streams.front()), peer.rank);
    if (!socket) return std::move(socket).error();
    mesh->links_.emplace(peer.rank, std::make_unique<PeerLink>(*std::move(socket)));
    for (std::size_t i = 1; i < peer.streams.size(); ++i) {
      mesh->spare_.push_back(std::move(peer.streams[i]));
    }
  }
  return mesh;
}

PeerLink* Mesh::link(Rank rank) const noexcept {
  const auto found = links_.find(rank);
  return found == links_.end() ? nullptr : found->second.get();
}

void Mesh::wants(std::vector<pollfd>& polled) const {
  for (const auto& [rank, link] : links_) {
    if (const pollfd entry = link->wants(); entry.fd >= 0) polled.push_back(entry);
  }
}

bool Mesh::busy() const noexcept {
  for (const auto& [rank, link] : links_) {
    if (link->wants().fd >= 0) return true;
  }
  return false;
}

void Mesh::shutdown() noexcept {
  for (const auto& [rank, link] : links_) link->shutdown();
}

std::vector<int> Mesh::descriptors() const {
  std::vector<int> all;
  for (const auto& [rank, link] : links_) all.push_back(link->fd());
  for (const Fd& fd : spare_) all.push_back(fd.get());
  return all;
}

}  // namespace rueda

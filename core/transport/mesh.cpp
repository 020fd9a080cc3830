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
    auto& links = mesh->links_[peer.rank];
    if (!peer.keys.empty() && peer.keys.size() != peer.streams.size()) {
      error.code = Code::InvalidArgument;
      error.message = "not as many keys as data connections to rank " + std::to_string(peer.rank);
      return error;
    }
    for (std::size_t i = 0; i < peer.streams.size(); ++i) {
      auto socket = Socket::adopt(std::move(peer.streams[i]), peer.rank,
                                  peer.keys.empty() ? SealKeys{} : peer.keys[i]);
      if (!socket) return std::move(socket).error();
      links.push_back(std::make_unique<PeerLink>(*std::move(socket), &mesh->operation_));
    }
  }
  return mesh;
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
  for (const auto& [rank, links] : links_) {
    for (const auto& link : links) {
      if (const pollfd entry = link->wants(); entry.fd >= 0) polled.push_back(entry);
    }
  }
}

bool Mesh::busy() const noexcept {
  for (const auto& [rank, links] : links_) {
    for (const auto& link : links) {
      if (link->wants().fd >= 0) return true;
    }
  }
  return false;
}

std::vector<int> Mesh::descriptors() const {
  std::vector<int> all;
  for (const auto& [rank, links] : links_) {
    for (const auto& link : links) all.push_back(link->fd());
  }
  return all;
}

}  // namespace rueda

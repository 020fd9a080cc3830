#include "engine/control/peers.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "engine/control/negotiator.h"
#include "engine/control/world.h"
#include "text.h"
#include "transport/control_channel.h"
#include "transport/shm_layout.h"

namespace farandole {

namespace {

/// With more ranks on other hosts there is no fast path: each proposal goes to all of them.
constexpr std::size_t kMostRemoteProposers = 15;

}  // namespace

Peers::Peers(Rank self, int size, std::vector<std::vector<Rank>> groups,
             std::vector<std::string> hosts)
    : self_(self), size_(size), groups_(std::move(groups)), hosts_(std::move(hosts)) {}

Peers::~Peers() = default;

std::unique_ptr<ShmHeap> Peers::heap_in(Fd file) const {
  const auto size = ShmSegment::size_of(file);
  const ShmExtent extent = heap_extent(static_cast<int>(own_group().size()), size ? *size : 0);
  if (extent.bytes == 0) file.reset();
  return std::make_unique<ShmHeap>(std::move(file), extent);
}

void Peers::own_segment(ShmSegment segment, Fd engine_bell, Fd waiter_bell) {
  segment_ = std::move(segment);
  // A second descriptor: tensors in the heap may outlive the segment.
  Fd file(segment_.fd() < 0 ? -1 : ::fcntl(segment_.fd(), F_DUPFD_CLOEXEC, 0));
  heap_ = heap_in(std::move(file));
  engine_bell_ = std::move(engine_bell);
  waiter_bell_ = std::move(waiter_bell);
}

void Peers::add_local_peer(Rank rank, ShmSegment segment, Fd engine_bell, Fd waiter_bell, Fd pidfd,
                           Fd liveness) {
  // Only the owner of a segment reserves memory in it, so here the file serves the heap alone.
  auto heap = heap_in(segment.take_file());
  local_.push_back({.rank = rank,
                    .segment = std::move(segment),
                    .heap = std::move(heap),
                    .engine_bell = std::move(engine_bell),
                    .waiter_bell = std::move(waiter_bell),
                    .pidfd = std::move(pidfd),
                    .liveness = std::move(liveness)});
}

void Peers::add_network_peer(Rank rank, Fd control, std::vector<Fd> data,
                             std::vector<SealKeys> keys) {
  SealKeys of_control;
  if (!keys.empty()) {
    of_control = keys.front();
    keys.erase(keys.begin());
  }
  network_.push_back({.rank = rank, .control = std::move(control), .keys = of_control});
  if (!data.empty()) {
    data_.push_back({.rank = rank, .streams = std::move(data), .keys = std::move(keys)});
  }
}

void Peers::add_absent_peer(Rank rank, int streams) {
  data_.push_back({.rank = rank, .absent = streams});
}

void Peers::take_arrivals() {
  for (LateConnections::Arrival& arrival : late_->take()) {
    std::vector<int> fds;
    for (const Fd& stream : arrival.streams) fds.push_back(stream.get());
    if (mesh_->connect(std::move(arrival))) note_opened(fds);
  }
}

std::string Peers::describe(Rank rank) const { return rank_on_host(rank, hosts_); }

std::vector<Rank> Peers::own_group() const {
  for (const auto& group : groups_) {
    if (std::find(group.begin(), group.end(), self_) != group.end()) return group;
  }
  return {};
}

ControlChannel* Peers::channel(Rank rank) noexcept {
  for (auto& neighbour : neighbours_) {
    if (neighbour.rank == rank) return neighbour.channel.get();
  }
  return nullptr;
}

Result<void> Peers::open_local() {
  const auto group = own_group();
  const auto local_size = static_cast<int>(group.size());
  const std::size_t need = segment_base_bytes(local_size);
  for (int i = 0; i < local_size; ++i) {
    const Rank rank = group[static_cast<std::size_t>(i)];
    const auto peer = std::find_if(local_.begin(), local_.end(),
                                   [rank](const LocalPeer& p) { return p.rank == rank; });
    const ShmSegment* segment = rank == self_ ? &segment_ : nullptr;
    if (peer != local_.end()) segment = &peer->segment;
    if (segment == nullptr || segment->bytes().size() < need) {
      return Error{.message = "bootstrap gave the engine no shared segment of " + describe(rank),
                   .peer = rank};
    }
    views_.emplace_back(segment->bytes(), local_size);
    if (rank == self_) {
      local_index_ = i;
      bells_.emplace_back(&views_.back().bell(), engine_bell_.get(), waiter_bell_.get());
      memories_.emplace_back();
    } else {
      bells_.emplace_back(&views_.back().bell(), peer->engine_bell.get(), peer->waiter_bell.get());
      memories_.push_back(direct_copies_ ? PeerMemory::of(peer->pidfd.get(), peer->liveness.get())
                                         : PeerMemory());
    }
  }
  if (direct_copies_) {
    auto token = MemoryToken::make();
    if (!token) return std::move(token).error();
    token_ = *std::move(token);
    token_->publish(views_[static_cast<std::size_t>(local_index_)].card());
  }
  bell_ = &views_[static_cast<std::size_t>(local_index_)].bell();
  beat_ = &views_[static_cast<std::size_t>(local_index_)].beat();
  return {};
}

Result<void> Peers::open_backend_factory() {
  ShmHost host;
  if (!views_.empty()) {
    host = {.ranks = own_group(), .members = {}, .self = local_index_, .own = &segment_};
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const Rank rank = host.ranks[i];
      const auto peer = std::find_if(local_.begin(), local_.end(),
                                     [rank](const LocalPeer& p) { return p.rank == rank; });
      host.members.push_back({.segment = views_[i],
                              .local_index = static_cast<int>(i),
                              .bell = bells_[i],
                              .heap = peer == local_.end() ? heap_.get() : peer->heap.get(),
                              .memory = memories_[i]});
    }
  }
  if (groups_.size() > 1) {
    if (std::ranges::any_of(data_, [](const Mesh::Peer& peer) { return peer.absent > 0; })) {
      auto late = LateConnections::open();
      if (!late) return std::move(late).error();
      late_ = *std::move(late);
    }
    auto mesh = Mesh::open(std::move(data_), late_.get());
    if (!mesh) return std::move(mesh).error();
    mesh_ = std::move(*mesh);
  }
  backend_factory_ = std::make_unique<BackendFactory>(self_, groups_, std::move(host), mesh_);
  backend_factory_->use(other_backend_);
  backend_factory_->limit_segments(segment_limit_);
  std::vector<Rank> world(static_cast<std::size_t>(size_));
  std::iota(world.begin(), world.end(), 0);
  auto backend = backend_factory_->open(world, 0);
  if (!backend) return std::move(backend).error();
  backend_ = std::move(*backend);
  return {};
}

/// Each rank sends its proposals to all members on other hosts, so there is a limit to these. The
/// member that has the most of them decides for all.
std::unique_ptr<Proposals> Peers::open_proposals(std::span<const Rank> ranks, int channel,
                                                 std::uint32_t generation, bool reused) {
  if (!may_propose()) return nullptr;
  if (ranks.size() == 1) return Proposals::alone();
  const Members set = backend_factory_->members(ranks);
  const auto fewest = std::ranges::min(set.groups, {}, &std::vector<int>::size).size();
  if (ranks.size() - fewest > kMostRemoteProposers) return nullptr;
  if (backend_factory_->is_cut_off(channel)) return nullptr;
  if (channel == kNoChannel && set.groups.size() < ranks.size()) return nullptr;
  const std::vector<Rank> own = own_group();
  std::vector<Proposals::Member> members(ranks.size());
  std::vector<std::size_t> local;
  for (std::size_t q = 0; q < ranks.size(); ++q) {
    if (mesh_) members[q].link = mesh_->link(ranks[q]);
    const auto at = std::ranges::find(own, ranks[q]);
    if (at == own.end()) continue;
    local.push_back(q);
    const auto index = static_cast<std::size_t>(at - own.begin());
    if (index < bells_.size()) members[q].bell = bells_[index];
  }
  // The channel of a rank that shares memory with no other member has no memory.
  if (local.size() > 1) {
    for (const std::size_t q : local) {
      const auto index = static_cast<std::size_t>(std::ranges::find(own, ranks[q]) - own.begin());
      members[q].board = &views_[index].proposals(channel);
    }
  }
  return std::make_unique<Proposals>(
      std::move(members), set.self,
      Proposals::Setting{.notes = &notes_, .subject = generation, .reused = reused});
}

Result<void> Peers::open() {
  const auto group = own_group();
  if (group.empty()) return Error{.message = "this rank is in no transport group"};
  const bool shares = group.size() > 1;
  if (shares) {
    if (auto opened = open_local(); !opened) return opened;
  } else {
    private_bell_ = std::make_unique<BellWord>();
    bell_ = private_bell_.get();
    private_beat_ = std::make_unique<BeatWord>();
    beat_ = private_beat_.get();
  }
  if (!waiter_bell_) {
    // Alone, too: a device may wake whoever waits. Nobody else needs an engine thread then.
    waiter_bell_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (size_ > 1) engine_bell_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!waiter_bell_ || (size_ > 1 && !engine_bell_)) return Error::system("eventfd", errno);
  }

  if (auto opened = open_backend_factory(); !opened) return opened;

  const ControlTree tree = control_tree(groups_, self_);
  std::vector<Rank> edges = tree.children;
  if (tree.parent) edges.push_back(*tree.parent);
  for (const Rank rank : edges) {
    const auto at = std::find(group.begin(), group.end(), rank);
    if (at != group.end()) {
      const auto index = static_cast<std::size_t>(at - group.begin());
      ShmChannel::Edge edge{.own = views_[static_cast<std::size_t>(local_index_)],
                            .own_index = local_index_,
                            .peer = views_[index],
                            .peer_index = static_cast<int>(index),
                            .peer_rank = rank,
                            .bell = bells_[index]};
      neighbours_.push_back({.rank = rank, .channel = std::make_unique<ShmChannel>(edge)});
      continue;
    }
    const auto peer = std::find_if(network_.begin(), network_.end(),
                                   [rank](const NetworkPeer& p) { return p.rank == rank; });
    if (peer == network_.end() || !peer->control) {
      return Error{
          .message = "bootstrap gave the engine no control connection to " + describe(rank),
          .peer = rank};
    }
    auto socket = Socket::adopt(std::move(peer->control), rank, peer->keys);
    if (!socket) return std::move(socket).error();
    auto channel = std::make_unique<SocketChannel>(std::move(*socket));
    SocketChannel* const as_socket = channel.get();
    neighbours_.push_back({.rank = rank, .channel = std::move(channel), .socket = as_socket});
  }
  note_opened();
  return {};
}

void Peers::note_opened() {
  std::vector<int> fds{engine_bell_.get(), waiter_bell_.get()};
  for (const LocalPeer& peer : local_) {
    fds.insert(fds.end(), {peer.pidfd.get(), peer.liveness.get()});
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.socket != nullptr) fds.push_back(neighbour.socket->fd());
  }
  if (mesh_) {
    const auto sockets = mesh_->descriptors();
    fds.insert(fds.end(), sockets.begin(), sockets.end());
  }
  note_opened(fds);
}

void Peers::note_opened(const std::vector<int>& fds) {
  for (const int fd : fds) {
    struct stat info{};
    if (fd >= 0 && ::fstat(fd, &info) == 0) {
      opened_.push_back({.fd = fd, .device = info.st_dev, .inode = info.st_ino});
    }
  }
}

bool Peers::intact() const {
  return std::ranges::all_of(opened_, [](const Opened& one) {
    struct stat info{};
    return ::fstat(one.fd, &info) == 0 && info.st_dev == one.device && info.st_ino == one.inode;
  });
}

void Peers::watch(std::vector<pollfd>& fds) const {
  for (const LocalPeer& peer : local_) {
    if (peer.pidfd) fds.push_back({.fd = peer.pidfd.get(), .events = POLLIN, .revents = 0});
    if (peer.liveness) fds.push_back({.fd = peer.liveness.get(), .events = POLLIN, .revents = 0});
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.socket != nullptr) fds.push_back(neighbour.socket->wants());
  }
  if (mesh_) mesh_->wants(fds);
}

std::vector<Peers::Watched> Peers::watched() {
  std::vector<Watched> all;
  const auto group = own_group();
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (static_cast<int>(i) == local_index_) continue;
    all.push_back({.rank = group[i], .word = &views_[i].beat()});
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.socket != nullptr) all.push_back({.rank = neighbour.rank});
  }
  return all;
}

bool Peers::awaits_descriptors() const {
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.socket != nullptr && neighbour.socket->congested()) return true;
  }
  return mesh_ && mesh_->busy();
}

void Peers::persist() noexcept {
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.socket != nullptr) neighbour.socket->persist();
  }
  if (mesh_) mesh_->persist();
}

std::optional<Peers::Loss> Peers::lost(const pollfd* fds, std::size_t count) const {
  std::optional<Loss> loss;
  for (std::size_t i = 0; i < count; ++i) {
    if (fds[i].revents == 0) continue;
    for (const LocalPeer& peer : local_) {
      if (fds[i].fd == peer.pidfd.get()) return Loss{.rank = peer.rank, .certain = true};
      if (fds[i].fd == peer.liveness.get()) loss = Loss{.rank = peer.rank, .certain = false};
    }
  }
  return loss;
}

bool Peers::map_heaps() {
  return std::all_of(local_.begin(), local_.end(),
                     [](const LocalPeer& peer) { return static_cast<bool>(peer.heap->at(0, 0)); });
}

const Peers::LocalPeer* Peers::local_peer(Rank rank) const {
  const auto peer = std::ranges::find(local_, rank, &LocalPeer::rank);
  return peer == local_.end() || !peer->pidfd ? nullptr : &*peer;
}

bool Peers::gone(Rank rank) const {
  const LocalPeer* peer = local_peer(rank);
  if (peer == nullptr) return false;
  pollfd ended{.fd = peer->pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) > 0 && (ended.revents & POLLIN) != 0;
}

bool Peers::lives(Rank rank) const { return local_peer(rank) != nullptr && !gone(rank); }

std::optional<Error> Peers::left_cause() const {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (static_cast<int>(i) == local_index_) continue;
    if (auto cause = read_cause(views_[i])) return cause;
  }
  return std::nullopt;
}

void Peers::leave_cause(const Error& error) {
  if (views_.empty()) return;
  publish_cause(views_[static_cast<std::size_t>(local_index_)], error);
  for (std::size_t i = 0; i < bells_.size(); ++i) {
    if (static_cast<int>(i) != local_index_) bells_[i].ring();
  }
}

std::vector<int> Peers::descriptors() const {
  std::vector<int> all{engine_bell_.get(), waiter_bell_.get(), segment_.fd()};
  for (const LocalPeer& peer : local_) {
    all.push_back(peer.heap->fd());
    all.insert(all.end(), {peer.engine_bell.get(), peer.waiter_bell.get(), peer.pidfd.get(),
                           peer.liveness.get()});
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.socket != nullptr) all.push_back(neighbour.socket->fd());
  }
  if (mesh_) {
    const auto sockets = mesh_->descriptors();
    all.insert(all.end(), sockets.begin(), sockets.end());
  }
  if (late_) all.push_back(late_->bell());
  return all;
}

}  // namespace farandole

#include "nccl/operation.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "devices/driver.h"
#include "fake_cuda.h"
#include "fake_nccl.h"
#include "nccl/numbers.h"

namespace farandole::fakes {
namespace {

/// A collective on its way: all ranks show a chunk each, and take from the chunks what they need.
class Collective {
 public:
  Collective(World& world, const Operation& operation)
      : world_(world),
        operation_(operation),
        rank_(world.rank()),
        size_(world.size()),
        width_(size_of(operation.type)),
        bytes_(operation.count * width_),
        send_(operation.sends(rank_) ? reach(operation.send, operation.send_bytes(size_))
                                     : nullptr),
        receive_(operation.receives(rank_)
                     ? reach(operation.receive, operation.receive_bytes(size_))
                     : nullptr) {}

  int run() {
    const Description description{.kind = static_cast<std::int32_t>(operation_.kind),
                                  .type = operation_.type,
                                  .op = operation_.op.scaled ? -1 : operation_.op.op,
                                  .root = operation_.peer,
                                  .count = operation_.count};
    bool agree = false;
    if (!world_.meet(description, agree)) return ncclSuccess;
    if (!agree) return ncclInternalError;
    // Each part of the input of a reduce-scatter is the result of one rank.
    const int parts = operation_.kind == Kind::ReduceScatter ? size_ : 1;
    for (int part = 0; part < parts; ++part) {
      for (std::size_t from = 0; from < bytes_; from += kChunk) {
        const std::size_t length = std::min(kChunk, bytes_ - from);
        if (!exchange(part, from, length)) return ncclSuccess;
      }
    }
    return ncclSuccess;
  }

 private:
  /// False: aborted.
  bool exchange(int part, std::size_t from, std::size_t length) {
    if (operation_.sends(rank_)) show(static_cast<std::size_t>(part) * bytes_ + from, length);
    if (!world_.meet()) return false;
    switch (operation_.kind) {
      case Kind::Broadcast:
        std::memcpy(receive_ + from, world_.shown(operation_.peer), length);
        break;
      case Kind::AllGather:
        for (int rank = 0; rank < size_; ++rank) {
          std::memcpy(receive_ + static_cast<std::size_t>(rank) * bytes_ + from, world_.shown(rank),
                      length);
        }
        break;
      case Kind::ReduceScatter:
        if (part == rank_) reduce(receive_ + from, length);
        break;
      default:
        if (operation_.receives(rank_)) reduce(receive_ + from, length);
    }
    return world_.meet();
  }

  void show(std::size_t from, std::size_t length) const {
    std::byte* shown = world_.shown(rank_);
    std::memcpy(shown, send_ + from, length);
    const ReduceOp& op = operation_.op;
    if (!op.scaled) return;
    const std::byte* factor =
        op.device_factor != nullptr ? reach(op.device_factor, width_) : op.host_factor.data();
    if (factor != nullptr) multiply(operation_.type, shown, length / width_, factor);
  }

  void reduce(std::byte* to, std::size_t length) const {
    const std::size_t count = length / width_;
    std::memcpy(to, world_.shown(0), length);
    const bool averages = operation_.op.op == ncclAvg;
    const bool before =
        averages && operation_.type >= ncclFloat16;  // integers are divided at the end
    if (before) divide(operation_.type, to, count, size_);
    std::vector<std::byte> share;
    for (int rank = 1; rank < size_; ++rank) {
      const std::byte* from = world_.shown(rank);
      if (before) {
        share.assign(from, from + length);
        divide(operation_.type, share.data(), count, size_);
        from = share.data();
      }
      combine(operation_.type, operation_.op.op, to, from, count);
    }
    if (averages && !before) divide(operation_.type, to, count, size_);
  }

  World& world_;
  const Operation& operation_;
  const int rank_;
  const int size_;
  const std::size_t width_;
  const std::size_t bytes_;
  std::byte* const send_;
  std::byte* const receive_;
};

/// One send or receive on its way.
class Message {
 public:
  Message(World& world, const Operation& operation)
      : sends_(operation.kind == Kind::Send),
        bytes_(operation.count * size_of(operation.type)),
        box_(sends_ ? world.mailbox(world.rank(), operation.peer)
                    : world.mailbox(operation.peer, world.rank())),
        content_(reach(sends_ ? operation.send : operation.receive, bytes_)) {}

  [[nodiscard]] bool done() const { return moved_ == bytes_; }
  [[nodiscard]] bool disagrees() const { return disagrees_; }
  /// The same way between the same ranks: one after the other.
  [[nodiscard]] bool follows(const Message& other) const {
    return sends_ == other.sends_ && &box_ == &other.box_;
  }
  /// Moves a chunk, if one can be moved now.
  bool step() {
    const std::uint64_t filled = box_.filled.load(std::memory_order_acquire);
    const std::uint64_t drained = box_.drained.load(std::memory_order_acquire);
    const std::size_t length = std::min(kChunk, bytes_ - moved_);
    if (sends_) {
      if (filled != drained) return false;
      box_.message_bytes = bytes_;
      std::memcpy(box_.data, content_ + moved_, length);
      box_.filled.store(filled + 1, std::memory_order_release);
    } else {
      if (filled == drained) return false;
      disagrees_ = box_.message_bytes != bytes_;
      if (disagrees_) return true;
      std::memcpy(content_ + moved_, box_.data, length);
      box_.drained.store(drained + 1, std::memory_order_release);
    }
    moved_ += length;
    return true;
  }

 private:
  const bool sends_;
  const std::size_t bytes_;
  World::Mailbox& box_;
  std::byte* const content_;
  std::size_t moved_ = 0;
  bool disagrees_ = false;
};

int run_messages(World& world, const std::vector<Operation>& operations) {
  std::vector<Message> messages;
  for (const Operation& operation : operations) {
    if (operation.between_two() && operation.count != 0) messages.emplace_back(world, operation);
  }
  while (!messages.empty()) {
    bool moved = false;
    const auto step_all = [&] {
      for (auto message = messages.begin(); message != messages.end(); ++message) {
        const auto earlier = std::find_if(messages.begin(), message, [&](const Message& other) {
          return !other.done() && message->follows(other);
        });
        if (earlier == message && !message->done()) moved |= message->step();
      }
      return moved;
    };
    if (!world.wait(step_all)) return ncclSuccess;
    for (const Message& message : messages) {
      if (message.disagrees()) return ncclInternalError;
    }
    std::vector<Message> left;
    for (const Message& message : messages) {
      if (!message.done()) left.push_back(message);
    }
    messages.swap(left);
    world.changed();
  }
  return ncclSuccess;
}

}  // namespace

std::size_t Operation::send_bytes(int size) const noexcept {
  const std::size_t parts = kind == Kind::ReduceScatter ? static_cast<std::size_t>(size) : 1;
  return kind == Kind::Receive ? 0 : parts * count * size_of(type);
}

std::size_t Operation::receive_bytes(int size) const noexcept {
  const std::size_t parts = kind == Kind::AllGather ? static_cast<std::size_t>(size) : 1;
  return kind == Kind::Send ? 0 : parts * count * size_of(type);
}

bool Operation::sends(int rank) const noexcept {
  return kind != Kind::Receive && (kind != Kind::Broadcast || rank == peer);
}

bool Operation::receives(int rank) const noexcept {
  return kind != Kind::Send && (kind != Kind::Reduce || rank == peer);
}

std::byte* reach(const void* pointer, std::size_t bytes) {
  const auto address = reinterpret_cast<DriverAddress>(pointer);
  if (bytes == 0) return static_cast<std::byte*>(const_cast<void*>(pointer));
  if (pointer == nullptr) return nullptr;
  void* first = fakeCudaHostAddress(address);
  if (first != nullptr) {
    return fakeCudaHostAddress(address + bytes - 1) != nullptr ? static_cast<std::byte*>(first)
                                                               : nullptr;
  }
  return fakeCudaIsPinned(pointer, bytes) != 0 ? static_cast<std::byte*>(const_cast<void*>(pointer))
                                               : nullptr;
}

bool within_reach(const Operation& operation, int rank, int size) {
  if (operation.sends(rank) && reach(operation.send, operation.send_bytes(size)) == nullptr &&
      operation.count != 0) {
    return false;
  }
  return !operation.receives(rank) || operation.count == 0 ||
         reach(operation.receive, operation.receive_bytes(size)) != nullptr;
}

int run(World& world, const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    if (!within_reach(operation, world.rank(), world.size())) return ncclUnhandledCudaError;
  }
  for (const Operation& operation : operations) {
    if (operation.between_two()) continue;
    if (const int result = Collective(world, operation).run(); result != ncclSuccess) return result;
  }
  return run_messages(world, operations);
}

}  // namespace farandole::fakes

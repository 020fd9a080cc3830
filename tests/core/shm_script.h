/// Random mixes of all operations of a backend, the same on every rank, with checked results.
/// Returns what went wrong as text, so that a forked rank can use it as well as a thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "association_reference.h"
#include "backends/backend.h"

namespace farandole::testing {

using reference::Bytes;

/// Steps all operations until they are done.
using Drive = std::function<Result<void>(const std::vector<Operation*>&)>;

struct Script {
  unsigned seed = 1;
  int operations = 100;
  std::size_t most_bytes = 3000;  ///< per tensor
  unsigned pause_one_in = 4;      ///< how often a rank dawdles before an operation; 0: never
  bool tagged = true;             ///< operations have numbers: ranks run one script at a time
};

class ScriptedRank {
 public:
  ScriptedRank(Script script, int rank, int size, Backend& backend, Drive drive)
      : script_(script),
        rank_(rank),
        size_(size),
        backend_(backend),
        drive_(std::move(drive)),
        common_(script.seed),
        own_(script.seed * 977 + static_cast<unsigned>(rank)) {}

  /// Empty if everything was right.
  [[nodiscard]] std::string run() {
    for (int i = 0; i < script_.operations && problem_.empty(); ++i) next();
    return problem_;
  }

  /// One operation.
  const std::string& next() {
    if (script_.pause_one_in > 0 && own_() % script_.pause_one_in == 0) dawdle();
    if (script_.tagged) backend_.begin(static_cast<OperationTag>(number_ + 1));
    switch (common_() % 10) {
      case 0:
        barrier();
        break;
      case 1:
        gather();
        break;
      case 2:
      case 3:
        broadcast();
        break;
      case 4:
        pass_around();
        break;
      case 5:
        scatter();
        break;
      case 6:
        exchange();
        break;
      default:
        reduce();
    }
    ++number_;
    return problem_;
  }

 private:
  std::size_t some_bytes() {
    // Few are long: borders of slots and chunks are crossed, and most operations stay quick.
    const std::size_t most = common_() % 4 == 0 ? script_.most_bytes : script_.most_bytes / 16;
    return common_() % (most + 1);
  }
  [[nodiscard]] Bytes content(int rank, std::size_t bytes, DType dtype = DType::UInt8) const {
    std::mt19937 random(script_.seed ^ static_cast<unsigned>(number_ * 64 + rank));
    return reference::mixed(dtype, bytes / size_of(dtype), random);
  }
  void dawdle() {
    volatile unsigned idle = 0;
    for (unsigned i = own_() % 20000; i > 0; --i) idle = idle + 1;
  }
  void finish(const std::vector<Operation*>& operations, const char* what) {
    if (auto done = drive_(operations); !done) complain(what, done.error().what());
  }
  void expect(bool right, const char* what) {
    if (!right) complain(what, "wrong bytes");
  }
  void complain(const char* what, const std::string& why) {
    if (problem_.empty()) {
      problem_ = std::string(what) + " (operation " + std::to_string(number_) + ", rank " +
                 std::to_string(rank_) + "): " + why;
    }
  }

  void barrier() {
    const auto operation = backend_.start(Barrier{});
    finish({operation.get()}, "barrier");
  }

  void reduce() {
    constexpr std::array types{DType::Float32, DType::Int32, DType::BFloat16, DType::Float64};
    const DType dtype = types[common_() % types.size()];
    const Reduction reduction{dtype, ReduceOp::Sum, common_() % 2 == 0 ? 1.0 : 0.25, 1.0};
    const std::size_t element = size_of(dtype);
    const std::size_t count = some_bytes() / element;
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < size_; ++rank)
      inputs.push_back(content(rank, count * element, dtype));
    const Bytes expected = reference::associate(backend_.members().groups, inputs, reduction);

    Bytes mine = inputs[static_cast<std::size_t>(rank_)];
    Bytes apart(mine.size());
    const bool in_place = common_() % 2 == 0;
    Bytes& out = in_place ? mine : apart;
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < count;) {
      const std::size_t part = std::min<std::size_t>(count - at, common_() % 500);
      pieces.push_back({mine.data() + at * element, out.data() + at * element, part});
      at += part;
    }
    const auto operation = backend_.start(Allreduce{pieces, reduction});
    finish({operation.get()}, "allreduce");
    expect(out == expected, "allreduce");
  }

  /// The parts of the reduction, of several pieces; parts may be empty.
  void scatter() {
    constexpr std::array types{DType::Float32, DType::Int16, DType::BFloat16, DType::Float64};
    const DType dtype = types[common_() % types.size()];
    const Reduction reduction{dtype, ReduceOp::Sum, common_() % 2 == 0 ? 1.0 : 0.25, 0.05};
    const std::size_t element = size_of(dtype);
    std::vector<ScatterPiece> pieces(common_() % 4);
    std::size_t count = 0;
    std::size_t own_bytes = 0;
    for (ScatterPiece& piece : pieces) {
      piece.begins.push_back(0);
      for (int member = 0; member < size_; ++member) {
        const std::size_t part = common_() % 3 == 0 ? 0 : some_bytes() / element;
        piece.begins.push_back(piece.begins.back() + part);
        if (member == rank_) own_bytes += part * element;
      }
      count += piece.begins.back();
    }
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < size_; ++rank) {
      inputs.push_back(content(rank, count * element, dtype));
    }
    const Bytes all = reference::associate(backend_.members().groups, inputs, reduction);

    const auto self = static_cast<std::size_t>(rank_);
    Bytes out(own_bytes);
    Bytes expected;
    std::size_t at = 0;
    for (ScatterPiece& piece : pieces) {
      piece.in = inputs[self].data() + at;
      piece.out = out.data() + expected.size();
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(at);
      expected.insert(expected.end(),
                      first + static_cast<std::ptrdiff_t>(piece.begins[self] * element),
                      first + static_cast<std::ptrdiff_t>(piece.begins[self + 1] * element));
      at += piece.begins.back() * element;
    }
    const auto operation = backend_.start(Reducescatter{pieces, reduction});
    finish({operation.get()}, "reducescatter");
    expect(out == expected, "reducescatter");
  }

  /// Everybody sends everybody something, or nothing.
  void exchange() {
    std::vector<std::size_t> bytes;  // from, then to
    for (int i = 0; i < size_ * size_; ++i) {
      bytes.push_back(common_() % 3 == 0 ? 0 : some_bytes() / static_cast<std::size_t>(size_));
    }
    const auto length = [&](int from, int to) {
      return bytes[static_cast<std::size_t>(from * size_ + to)];
    };
    AlltoallPlan plan;
    std::vector<Bytes> brought;
    for (int from = 0; from < size_; ++from) {
      std::size_t total = 0;
      for (int to = 0; to < size_; ++to) total += length(from, to);
      plan.longest = std::max(plan.longest, total);
      brought.push_back(content(from, total));
    }
    Bytes expected;
    for (int from = 0; from < size_; ++from) {
      auto at = brought[static_cast<std::size_t>(from)].begin();
      for (int to = 0; to < rank_; ++to) at += static_cast<std::ptrdiff_t>(length(from, to));
      expected.insert(expected.end(), at, at + static_cast<std::ptrdiff_t>(length(from, rank_)));
    }
    Bytes out(expected.size());
    std::span<const std::byte> mine(brought[static_cast<std::size_t>(rank_)]);
    std::span<std::byte> place(out);
    for (int other = 0; other < size_; ++other) {
      plan.in.push_back(mine.first(length(rank_, other)));
      mine = mine.subspan(length(rank_, other));
      plan.out.push_back(place.first(length(other, rank_)));
      place = place.subspan(length(other, rank_));
    }
    const auto operation = backend_.start(std::move(plan));
    finish({operation.get()}, "alltoall");
    expect(out == expected, "alltoall");
  }

  void broadcast() {
    const int root = static_cast<int>(common_() % static_cast<unsigned>(size_));
    const std::size_t bytes = some_bytes();
    const Bytes source = content(root, bytes);
    const bool in_place = common_() % 2 == 0;
    Bytes out = in_place && rank_ == root ? source : Bytes(bytes);
    const auto operation = backend_.start(Broadcast{in_place ? out : source, out, root});
    finish({operation.get()}, "broadcast");
    expect(out == source, "broadcast");
  }

  void gather() {
    std::vector<std::size_t> lengths;
    for (int rank = 0; rank < size_; ++rank)
      lengths.push_back(common_() % 3 == 0 ? 0 : some_bytes());
    const Bytes mine = content(rank_, lengths[static_cast<std::size_t>(rank_)]);
    std::vector<Bytes> out;
    GatherPlan plan;
    plan.in = cut<const std::byte>(mine);
    for (const std::size_t length : lengths) out.emplace_back(length);
    for (Bytes& bytes : out) plan.out.push_back(cut<std::byte>(bytes));
    const auto operation = backend_.start(std::move(plan));
    finish({operation.get()}, "allgather");
    for (int rank = 0; rank < size_; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      expect(out[i] == content(rank, lengths[i]), "allgather");
    }
  }

  /// Everybody sends to the one that far to the right, and receives from the left.
  void pass_around() {
    if (size_ == 1) return;
    const int distance = 1 + static_cast<int>(common_() % static_cast<unsigned>(size_ - 1));
    const std::size_t bytes = some_bytes() * 8;
    const Bytes mine = content(rank_, bytes);
    const int left = (rank_ + size_ - distance) % size_;
    Bytes out(bytes);
    const auto send = backend_.send((rank_ + distance) % size_, mine);
    const auto recv = backend_.recv(left, out);
    finish({send.get(), recv.get()}, "send and recv");
    expect(out == content(left, bytes), "send and recv");
  }

  /// Into pieces of own choice: members need not agree.
  template <typename Byte>
  std::vector<std::span<Byte>> cut(std::span<Byte> bytes) {
    std::vector<std::span<Byte>> parts;
    while (!bytes.empty()) {
      const std::size_t part = std::min<std::size_t>(bytes.size(), own_() % 700);
      parts.push_back(bytes.first(part));
      bytes = bytes.subspan(part);
    }
    return parts;
  }

  Script script_;
  int rank_;
  int size_;
  Backend& backend_;
  Drive drive_;
  std::mt19937 common_;  // the same numbers on every rank
  std::mt19937 own_;
  int number_ = 0;
  std::string problem_;
};

}  // namespace farandole::testing

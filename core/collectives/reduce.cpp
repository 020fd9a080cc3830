/// Reduce: one rank, the root, gets the reduction of all ranks' tensors; the others keep theirs.
/// Source: MPI 4.1, section 6.9.1.
///
/// A short batch is an allreduce whose result only the root keeps. A longer one goes in windows, so
/// that what is between two steps stays in a cache: every member reduces a share of the window,
/// which then goes to the root. Of n members all together send (n + 1) / 2n of what they send in an
/// allreduce.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "backends/buffers/piece_array.h"
#include "collectives/collective.h"
#include "collectives/integer_average.h"

namespace farandole {

namespace {

/// From how many bytes on members reduce shares.
constexpr std::size_t kShared = std::size_t{128} << 10;
constexpr std::size_t kWindow = std::size_t{4} << 20;  // bytes
/// Shares begin at multiples of so many elements, on whole cache lines.
constexpr std::size_t kAligned = 64;

std::string disagreement(const Signature& one, const Signature& other) {
  if (auto text = basic_disagreement(one, other); !text.empty()) return text;
  if (auto text = shape_disagreement(one, other); !text.empty()) return text;
  if (auto text = factor_disagreement(one, other); !text.empty()) return text;
  if (auto text = op_disagreement(one, other); !text.empty()) return text;
  if (auto text = root_disagreement(one, other); !text.empty()) return text;
  return device_disagreement(one, other);
}

std::string describe(const Signature& signature) {
  return describe_tensor(signature, " " + std::string(name_of(signature.op)),
                         " to root " + std::to_string(signature.root));
}

Result<void> check(const Task& task, const Members& members) {
  if (task.signature->op == ReduceOp::Adasum) {
    return Error{.code = Code::Unsupported,
                 .message = "reduce does not support Adasum; use allreduce"};
  }
  return check_root(*task.signature, members);
}

/// The result of each task lies where its tensor lies, or beside it.
std::vector<Piece> pieces_of(std::span<const Task> tasks) {
  std::vector<Piece> pieces;
  pieces.reserve(tasks.size());
  for (const Task& task : tasks) {
    pieces.push_back({.in = task.in,
                      .out = task.out,
                      .count = static_cast<std::size_t>(element_count(task.signature->shape))});
  }
  return pieces;
}

class Reduce final : public Operation {
 public:
  Reduce(Backend& backend, std::span<const Task> tasks)
      : backend_(backend),
        reduction_(reduction_of(*tasks.front().signature, backend.members().size())),
        averages_integers_(averages_integers(*tasks.front().signature, backend.members().size())),
        element_(size_of(reduction_.dtype)),
        self_(backend.members().self),
        root_(root_of(*tasks.front().signature, backend.members())),
        batch_(pieces_of(tasks), reduction_.dtype) {
    const bool shared =
        backend.members().size() > 1 && batch_.bytes() >= kShared && !averages_integers_;
    path_ = backend.path(shared ? Kind::Reducescatter : Kind::Allreduce, batch_.bytes());
    if (self_ != root_) keep_ = scale_pieces(batch_.pieces(), {.dtype = reduction_.dtype});
    if (shared) {
      reduce_window();
    } else {
      reduce_whole();
    }
  }

  Result<Step> step() override {
    const bool kept = keep();
    if (phase_ == Phase::Keeping) return keep_ ? Step::Advanced : Step::Done;
    auto step = exchange_->step();
    if (!step) return step;
    if (*step != Step::Done) return kept ? Step::Advanced : *step;
    exchange_.reset();  // what it has leased is for the next one
    if (phase_ == Phase::Sharing) {
      gather_window();
    } else {
      if (phase_ == Phase::Gathering) unpack_gathered();
      if (phase_ == Phase::Whole || end_ == batch_.count()) {
        phase_ = Phase::Keeping;
        return keep_ ? Step::Advanced : Step::Done;
      }
      reduce_window();
    }
    return Step::Advanced;
  }

  std::vector<Rank> waiting_for() const override {
    return exchange_ ? exchange_->waiting_for() : std::vector<Rank>();
  }
  std::string_view path() const override { return path_; }

 private:
  enum class Phase : std::uint8_t { Whole, Sharing, Gathering, Keeping };

  /// Copies what a member that is not the root is given to where its result goes. Whether there was
  /// something to do.
  bool keep() {
    if (!keep_) return false;
    const auto step = keep_->step();
    if (!step || *step == Step::Done) keep_.reset();
    return true;
  }

  void reduce_whole() {
    if (averages_integers_) {
      std::vector<AveragedPiece> averaged;
      for (const Piece& piece : batch_.pieces()) {
        const std::size_t kept = self_ == root_ ? piece.count : 0;
        averaged.push_back({.in = piece.in, .count = piece.count, .out = piece.out, .end = kept});
      }
      exchange_ = average_of_integers(backend_, std::move(averaged), reduction_);
      return;
    }
    std::vector<Piece> pieces(batch_.pieces().begin(), batch_.pieces().end());
    if (self_ != root_) {
      std::byte* out = staging(batch_.count());
      for (Piece& piece : pieces) {
        piece.out = out;
        out += piece.count * element_;
      }
    }
    exchange_ = backend_.start(Allreduce{pieces, reduction_});
  }

  std::byte* staging(std::size_t elements) {
    if (!staging_) staging_ = std::make_unique_for_overwrite<std::byte[]>(elements * element_);
    return staging_.get();
  }

  /// The first element of a member's share. Of two members only the root reduces.
  [[nodiscard]] std::size_t begin(int member) const {
    if (backend_.members().size() == 2) return member <= root_ ? begin_ : end_;
    return std::min(begin_ + static_cast<std::size_t>(member) * share_, end_);
  }
  [[nodiscard]] std::size_t length(int member) const { return begin(member + 1) - begin(member); }
  /// On the root.
  [[nodiscard]] std::byte* packed(int member) const {
    return staging_.get() + (begin(member) - begin_) * element_;
  }
  /// Where the root can take a share without packing it.
  [[nodiscard]] std::byte* place(int member) const {
    if (length(member) == 0) return nullptr;
    std::byte* const out = batch_.contiguous_out(begin(member), length(member));
    const bool in_place = out == batch_.contiguous_in(begin(member), length(member));
    return member == self_ && in_place ? nullptr : out;
  }
  void unpack(int member) { batch_.unpack(packed(member), begin(member), length(member)); }

  void reduce_window() {
    const auto size = static_cast<std::size_t>(backend_.members().size());
    const std::size_t window = std::min(kWindow / element_, batch_.count());
    phase_ = Phase::Sharing;
    begin_ = end_;
    end_ = std::min(begin_ + window, batch_.count());
    share_ = ((end_ - begin_ + size - 1) / size + kAligned - 1) / kAligned * kAligned;
    std::byte* out = staging(window);
    if (self_ == root_) out = place(self_) != nullptr ? place(self_) : packed(self_);
    std::vector<ScatterPiece> pieces;
    batch_.for_each(
        begin_, end_ - begin_,
        [&](const Piece& piece, std::size_t first, std::size_t elements, std::size_t before) {
          pieces.push_back(part_of(piece, first, elements, begin_ + before, out));
        });
    exchange_ = backend_.start(Reducescatter{pieces, reduction_});
  }

  /// Elements of one piece, the first of which is that one of the batch. Moves `out`.
  ScatterPiece part_of(const Piece& piece, std::size_t first, std::size_t elements, std::size_t at,
                       std::byte*& out) const {
    ScatterPiece part{.in = piece.in + first * element_, .out = out, .begins = {}};
    for (int m = 0; m <= backend_.members().size(); ++m) {
      part.begins.push_back(std::clamp(begin(m), at, at + elements) - at);
    }
    const auto own = static_cast<std::size_t>(self_);
    out += (part.begins[own + 1] - part.begins[own]) * element_;
    return part;
  }

  void gather_window() {
    const auto size = static_cast<std::size_t>(backend_.members().size());
    phase_ = Phase::Gathering;
    AlltoallPlan plan{.in = std::vector<std::span<const std::byte>>(size),
                      .out = std::vector<std::span<std::byte>>(size),
                      .longest = size == 2 ? 0 : share_ * element_};
    if (self_ != root_) {
      plan.in[static_cast<std::size_t>(root_)] = {staging_.get(), length(self_) * element_};
    } else {
      if (length(self_) != 0 && place(self_) == nullptr) unpack(self_);
      for (int m = 0; m < backend_.members().size(); ++m) {
        if (m == self_) continue;
        std::byte* const out = place(m) != nullptr ? place(m) : packed(m);
        plan.out[static_cast<std::size_t>(m)] = {out, length(m) * element_};
      }
    }
    exchange_ = backend_.start(std::move(plan));
  }

  void unpack_gathered() {
    if (self_ != root_) return;
    for (int m = 0; m < backend_.members().size(); ++m) {
      if (m != self_ && length(m) != 0 && place(m) == nullptr) unpack(m);
    }
  }

  Backend& backend_;
  const Reduction reduction_;
  const bool averages_integers_;
  const std::size_t element_;  // bytes
  const int self_;
  const int root_;
  const PieceArray batch_;
  std::string_view path_;
  Phase phase_ = Phase::Whole;
  std::size_t begin_ = 0;  // of the window: elements of the batch
  std::size_t end_ = 0;
  std::size_t share_ = 0;                 // elements
  std::unique_ptr<std::byte[]> staging_;  // of the window; else of what nobody wants
  std::unique_ptr<Operation> keep_;
  std::unique_ptr<Operation> exchange_;  // last: it ends before the memory it uses
};

std::unique_ptr<Operation> start(Backend& backend, std::span<const Task> tasks) {
  return std::make_unique<Reduce>(backend, tasks);
}

Result<void> combine(const Task& task, const Backend& backend, const FastRule::Shares& shares) {
  const Members& members = backend.members();
  const Signature& signature = *task.signature;
  if (members.self == root_of(signature, members)) {
    combine_shares(task.out, shares.data, static_cast<std::size_t>(element_count(signature.shape)),
                   signature, backend);
  } else if (task.out != task.in) {
    std::memcpy(task.out, task.in, signature.bytes());
  }
  return {};
}

}  // namespace

const Collective kReduce{.kind = Kind::Reduce,
                         .rules = {.name = "REDUCE",
                                   .prefix = "reduce",
                                   .fusable = true,
                                   .runs_with_joined = true,
                                   .in_place = true,
                                   .rooted = true,
                                   .disagreement = disagreement,
                                   .describe = describe},
                         .check = check,
                         .start = start,
                         .fast = FastRule{.combine = combine},
                         .host_only = true};

}  // namespace farandole

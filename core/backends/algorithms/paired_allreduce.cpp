#include "backends/algorithms/paired_allreduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <vector>

#include "backends/algorithms/transfers.h"
#include "backends/buffers/piece_array.h"
#include "rounding.h"

namespace farandole {

namespace {

int power_below(int members) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(members)));
}

int rounds_of(int members) { return std::bit_width(static_cast<unsigned>(members)) - 1; }

}  // namespace

std::size_t meetings(int members, Pairing pairing) {
  const int rounds = rounds_of(members) * (pairing == Pairing::Halving ? 2 : 1);
  return static_cast<std::size_t>(rounds) + (members > power_below(members) ? 2 : 0);
}

void plan_meetings(std::vector<Meeting>& plan, int self, int members, Pairing pairing,
                   std::size_t window, std::size_t count, std::size_t aligned) {
  plan.assign(meetings(members, pairing), {});
  const int power = power_below(members);
  const int surplus = members - power;
  const int rounds = rounds_of(members);
  const bool upper = window % 2 == 1;  // the partner beyond the power of two is inside
  const int place = self < power ? self : self - power;
  const bool paired = place < surplus;
  const int partner = self < power ? self + power : self - power;
  const WindowRange whole{0, count};
  std::size_t stage = 0;

  if (paired && upper != (self >= power)) {  // outside
    plan.front() = {.peer = partner, .send = whole};
    plan.back() = {.peer = partner, .receive = whole};
    return;
  }
  const auto inside = [&](int at) { return upper && at < surplus ? at + power : at; };
  if (surplus > 0) {
    if (paired) {
      plan.front() = {.peer = partner, .receive = whole, .combines = true};
      plan.back() = {.peer = partner, .send = whole};
    }
    stage = 1;
  }
  WindowRange mine = whole;
  for (int round = 0; round < rounds; ++round) {
    Meeting& meeting = plan[stage + static_cast<std::size_t>(round)];
    meeting = {.peer = inside(place ^ (1 << round)),
               .send = mine,
               .receive = mine,
               .combines = true,
               .completes = round == rounds - 1};
    if (pairing == Pairing::Doubling) continue;
    const std::size_t half = (mine.count + 1) / 2;
    const std::size_t lower = std::min(mine.count, round_up(half, aligned));
    WindowRange first{mine.begin, lower};
    WindowRange second{mine.begin + lower, mine.count - lower};
    if ((place >> round & 1) != 0) std::swap(first, second);
    meeting.receive = mine = first;
    meeting.send = second;
    // The way back: what was given away to be combined comes as a result.
    const auto back = static_cast<std::size_t>(2 * rounds - 1 - round);
    plan[stage + back] = {.peer = meeting.peer, .send = first, .receive = second};
  }
}

namespace {

/// Each window goes through its meetings one after another; several windows are under way, so that
/// links carry one while another is reduced. Both ends of a link must post in one order, whatever
/// arrives first where: meeting t of window k has its turn at k * stride + t, and a link serves its
/// meetings in the order of their turns (of equal ones the lower window first). Nothing ever waits
/// for a later turn: a meeting needs the one before it in its window, or, if it is the first, the
/// buffers of window k - under_way, whose last turn is not later as under_way * stride is at least
/// the number of meetings.
class PairedAllreduce final : public Operation {
 public:
  PairedAllreduce(Backend& backend, Staging& staging, std::span<const Piece> pieces,
                  const Reduction& reduction, const PairedPlan& plan)
      : members_(backend.members()),
        reduction_(reduction),
        shares_(backend.association().shares(reduction.dtype, reduction.op, reduction.postscale)),
        pairing_(plan.pairing),
        array_(pieces, reduction.dtype),
        element_(size_of(reduction.dtype)),
        window_(std::max<std::size_t>(1, std::min(plan.window, array_.count()))),
        windows_(ceil_div(array_.count(), window_)),
        under_way_(std::max<std::size_t>(1, std::min(plan.under_way, windows_))),
        meetings_(meetings(members_.size(), pairing_)),
        stride_((meetings_ + under_way_ - 1) / under_way_),
        buffer_bytes_((window_ * element_ + 63) / 64 * 64),
        lease_(staging.lease(2 * under_way_ * buffer_bytes_)),
        live_(under_way_),
        blocked_(static_cast<std::size_t>(members_.size())),
        transfers_(backend) {
    assert(members_.size() > 1);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      plan_meetings(peers_[i], members_.self, members_.size(), pairing_, i, 0, 1);
    }
  }

  Result<Step> step() override {
    return transfers_.drive([this] { return advance(); }, [this] { return finished_ == windows_; });
  }

  std::vector<Rank> waiting_for() const override { return transfers_.waiting_for(); }

 private:
  struct Window {
    std::vector<Meeting> meetings;
    std::size_t begin = 0;  // elements of the array
    std::size_t count = 0;
    const std::byte* value = nullptr;  // mine so far: the input, or in `work`
    std::byte* work = nullptr;         // the output, if the window lies in one piece, else staged
    std::byte* received = nullptr;     // what is to be combined
    bool staged = false;
    std::size_t posted = 0;  // meetings
    std::size_t held = 0;
    int sending = 0;
    int receiving = 0;
  };

  [[nodiscard]] Window& window(std::size_t index) { return live_[index % under_way_]; }

  bool advance() {
    bool advanced = false;
    for (bool again = true; again;) {
      again = open();
      for (std::size_t k = finished_; k < opened_; ++k) again |= hold(window(k));
      again |= post();
      while (finished_ < opened_ && finish(window(finished_))) {
        ++finished_;
        again = true;
      }
      advanced |= again;
    }
    return advanced;
  }

  bool open() {
    if (opened_ == windows_ || opened_ == finished_ + under_way_) return false;
    Window& next = window(opened_);
    std::byte* const buffers = lease_.data() + opened_ % under_way_ * 2 * buffer_bytes_;
    next.begin = opened_ * window_;
    next.count = std::min(window_, array_.count() - next.begin);
    plan_meetings(next.meetings, members_.self, members_.size(), pairing_, opened_, next.count,
                  std::max<std::size_t>(1, 64 / element_));
    next.received = buffers;
    next.work = array_.contiguous_out(next.begin, next.count);
    next.staged = next.work == nullptr;
    if (next.staged) next.work = buffers + buffer_bytes_;
    // Who has no partner while others have one takes its share of that round alone.
    const double share = next.meetings.front().peer < 0 ? shares_.round(0) : 1.0;
    const bool plain =
        (reduction_.prescale == 1.0 && share == 1.0) || reduction_.dtype == DType::Bool;
    next.value = plain ? array_.contiguous_in(next.begin, next.count) : nullptr;
    if (next.value == nullptr) {
      array_.pack(next.work, next.begin, next.count, reduction_.prescale);
      if (share != 1.0) scale_copy(next.work, next.work, next.count, reduction_.dtype, share);
      next.value = next.work;
    }
    next.posted = next.held = 0;
    ++opened_;
    return true;
  }

  /// Brings a meeting that is posted to its end, if all of it has arrived.
  bool hold(Window& window) {
    if (window.held == window.posted || window.receiving != 0) return false;
    const Meeting& meeting = window.meetings[window.held];
    if (meeting.combines) {
      // The combination may go where what is sent lies. (In other meetings, the range that is
      // written is sent no more: the peer has received all of it before it tells the result.)
      if (meeting.send.begin == meeting.receive.begin && window.sending != 0) return false;
      const std::size_t count = meeting.receive.count;
      const std::size_t at = meeting.receive.begin * element_;
      const std::array<const std::byte*, 2> pair{window.value + at, window.received};
      // Meetings that combine come first: one for each round of the association.
      const double share =
          meeting.completes ? shares_.last : shares_.round(static_cast<int>(window.held));
      reduce(window.work + at, pair, count, reduction_.dtype, reduction_.op, share);
      window.value = window.work;
    }
    ++window.held;
    return true;
  }

  /// Posts what has its turn.
  bool post() {
    bool posted = false;
    std::fill(blocked_.begin(), blocked_.end(), false);
    if (finished_ == opened_) return false;
    const std::size_t last = (opened_ - 1) * stride_ + meetings_;  // turns before this one count
    for (std::size_t turn = finished_ * stride_; turn < last; ++turn) {
      const std::size_t oldest =
          turn < meetings_ ? 0 : (turn - meetings_ + stride_) / stride_;  // turn - t < meetings_
      for (std::size_t k = std::max(oldest, finished_); k < windows_ && k * stride_ <= turn; ++k) {
        const std::size_t t = turn - k * stride_;
        if (t >= meetings_) continue;
        const int peer = peers_[k % 2][t].peer;
        const bool live = k < opened_;
        if (live && window(k).posted > t) continue;
        const bool due = live && window(k).posted == t && window(k).held == t;
        if (peer < 0) {
          if (due) window(k).posted = window(k).held = t + 1;
          posted |= due;
        } else if (!due || blocked_[static_cast<std::size_t>(peer)]) {
          blocked_[static_cast<std::size_t>(peer)] = true;
        } else {
          post(window(k));
          posted = true;
        }
      }
    }
    return posted;
  }

  void post(Window& window) {
    const Meeting& meeting = window.meetings[window.posted++];
    const auto bytes = [this](std::size_t count) { return count * element_; };
    transfers_.send(meeting.peer,
                    {window.value + bytes(meeting.send.begin), bytes(meeting.send.count)},
                    window.sending);
    std::byte* const into =
        meeting.combines ? window.received : window.work + bytes(meeting.receive.begin);
    transfers_.recv(meeting.peer, {into, bytes(meeting.receive.count)}, window.receiving);
  }

  bool finish(Window& window) {
    if (window.held != meetings_ || window.sending != 0) return false;
    if (window.staged) array_.unpack(window.work, window.begin, window.count);
    return true;
  }

  const Members& members_;
  const Reduction reduction_;
  const Shares shares_;
  const Pairing pairing_;
  const PieceArray array_;
  const std::size_t element_;  // bytes
  const std::size_t window_;   // elements
  const std::size_t windows_;
  const std::size_t under_way_;
  const std::size_t meetings_;  // of a window
  const std::size_t stride_;    // turns between windows
  const std::size_t buffer_bytes_;
  std::array<std::vector<Meeting>, 2> peers_;  // by window modulo 2, without ranges
  Staging::Lease lease_;
  std::vector<Window> live_;   // by window modulo under_way_
  std::vector<char> blocked_;  // by set rank: a meeting with it has its turn first
  std::size_t opened_ = 0;     // windows
  std::size_t finished_ = 0;
  Transfers transfers_;  // last: its transfers end before the memory they use
};

}  // namespace

std::unique_ptr<Operation> paired_allreduce(Backend& backend, Staging& staging,
                                            std::span<const Piece> pieces,
                                            const Reduction& reduction, const PairedPlan& plan) {
  return std::make_unique<PairedAllreduce>(backend, staging, pieces, reduction, plan);
}

}  // namespace farandole

#include "backends/algorithms/pairing.h"

#include <algorithm>
#include <bit>

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

}  // namespace farandole

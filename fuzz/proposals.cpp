/// Boards on which ranks agree by themselves; two of three members write what they like, also while
/// it is read, or send it from elsewhere.

#include "transport/proposals.h"
#include "transport/note_exchange.h"

#include <sys/socket.h>

#include <array>
#include <cstring>

#include "meddler.h"
#include "target.h"

namespace farandole::fuzz {
namespace {

enum Step : std::uint8_t {
  kProposal,
  kLook,
  kClose,
  kReopen,
  kAsk,
  kAnswer,
  kPublish,
  kSay,
  kFlag,
  kNote,
  kCall,
  kSteps
};

/// What a board decides by. Of the own one others may only set the call; but they could set all.
Shared shared(std::span<std::byte> pages, std::span<ProposalBoard> boards) {
  Shared shared{.pages = {pages}, .words = {}};
  for (ProposalBoard& board : boards) {
    shared.words.push_back(reinterpret_cast<std::byte*>(&board.closed));
    shared.words.push_back(reinterpret_cast<std::byte*>(&board.asked));
    for (ProposalSlot& slot : board.slots) {
      for (std::size_t at = 0; at < offsetof(ProposalSlot, data) + 8; at += 4) {
        shared.words.push_back(reinterpret_cast<std::byte*>(&slot) + at);
      }
    }
  }
  return shared;
}

void run(std::span<const std::byte> input) {
  constexpr std::size_t kMembers = 3;
  static const Pages pages(kMembers * sizeof(ProposalBoard));
  const std::span boards(reinterpret_cast<ProposalBoard*>(pages.all().data()), kMembers);
  std::memset(static_cast<void*>(boards.data()), 0, boards.size_bytes());
  Script script(input);
  const Meddler meddler(shared(pages.all(), boards), script);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return;
  const Fd other(ends[0]);
  auto socket = Socket::adopt(Fd(ends[1]), 2);
  require(static_cast<bool>(socket), "a socket pair can be adopted");
  PeerLink link(std::move(*socket));
  NoteExchange notes;
  const bool remote = (script.byte() & 1) != 0;  // the last member
  Proposals proposals({{.board = &boards[0], .bell = {}},
                       {.board = &boards[1], .bell = {}},
                       {.board = &boards[2], .bell = {}, .link = remote ? &link : nullptr}},
                      0, Proposals::Setting{.notes = &notes});
  while (!script.empty()) {
    const auto what = script.byte() % kSteps;
    ProposalBoard& board = boards[1 + script.byte() % 2];
    switch (what) {
      case kProposal: {
        const auto said = script.byte();
        if (!proposals.may_propose()) break;
        std::memset(proposals.room(), script.byte(), said);
        proposals.propose({.count = 1U + script.byte(), .key = script.byte(), .signature = 1}, said,
                          said);
        break;
      }
      case kLook: {
        if (!proposals.open()) break;
        const auto outcome = proposals.outcome();
        if (outcome == Proposals::Outcome::Open) break;
        if (outcome == Proposals::Outcome::Agreed) {
          for (int member = 0; member < 3; ++member) {
            std::array<std::byte, kProposalBytes> read;
            std::memcpy(read.data(), proposals.room_of(member), read.size());
          }
        }
        proposals.settle();
        break;
      }
      case kClose:
        proposals.close();
        break;
      case kReopen:
        proposals.reopen();
        break;
      case kAsk:
        if (proposals.open()) proposals.ask();
        break;
      case kAnswer:
        if (proposals.asked()) proposals.answer();
        break;
      case kPublish: {
        ProposalSlot& slot = board.slots[script.byte() % 2];
        slot.count = script.byte();
        slot.key = script.byte();
        slot.signature = script.byte();
        slot.call = script.byte();
        slot.round = script.number();
        break;
      }
      case kSay: {
        ProposalSlot& slot = board.slots[script.byte() % 2];
        const auto bytes = script.piece(script.byte());
        std::memcpy(slot.data.data(), bytes.data(), bytes.size());
        break;
      }
      case kFlag:
        board.closed = script.byte() & 1;
        board.asked = script.byte() & 1;
        boards[0].asked = script.byte() & 1;
        break;
      case kNote: {
        if (!remote) break;
        auto fine = proposals.note(2, script.piece(script.byte()));
        if (!fine) return;  // the world ends
        proposals.refuse();
        break;
      }
      case kCall:
        proposals.called(script.number());
        break;
      default:
        break;
    }
    if (proposals.unsent()) proposals.send_notes();
  }
}

std::vector<Bytes> seeds() {
  const auto script = [](std::initializer_list<int> numbers) {
    Bytes bytes;
    for (const int number : numbers) bytes.push_back(static_cast<std::byte>(number));
    return bytes;
  };
  return {
      script({0,     0, kProposal, 0, 0,        7, 0, 5, kPublish, 0, 1, 1, 5, 1, 0,
              1,     0, 0,         0, kPublish, 1, 1, 1, 5,        1, 0, 1, 0, 0, 0,
              kLook, 0, kClose,    0, kPublish, 0, 0, 1, 5,        1, 0, 2, 0, 0, 0}),
      script({0, 0, kFlag, 0, 1,       0, 1,     kProposal, 0,       4, 7,
              0, 5, kAsk,  0, kAnswer, 0, kLook, 0,         kReopen, 0}),
      script({0, 1, kProposal, 0, 4, 7, 0, 5, kNote, 0, 32, 1, 0, 0, 0, 1, 0, 0, 0, 5, 0,     0, 0,
              1, 0, 0,         0, 0, 0, 0, 0, 0,     0, 0,  0, 0, 0, 0, 0, 0, 0, 0, 0, kLook, 0})};
}

}  // namespace

const Target kProposals{"proposals", run, seeds};

}  // namespace farandole::fuzz

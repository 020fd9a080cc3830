#include "meddler.h"

#include <sys/mman.h>

#include <array>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__) && !defined(FARANDOLE_THREAD_SANITIZED)
#define FARANDOLE_FUZZ_TRAPS 1
#include <ucontext.h>

#include <csignal>
#endif

namespace farandole::fuzz {

Pages::Pages(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
  void* const memory =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "there is memory");
  memory_ = {static_cast<std::byte*>(memory), whole};
}

Pages::~Pages() { ::munmap(memory_.data(), memory_.size()); }

#if FARANDOLE_FUZZ_TRAPS

namespace {

constexpr std::size_t kMostChanges = 64;
constexpr std::size_t kMostRegions = 4;
/// A run that touches the memory more often than this goes on undisturbed.
constexpr std::size_t kMostTraps = 500;
constexpr greg_t kTrapFlag = 0x100;

struct Change {
  std::uint8_t accesses;  ///< that are let through before it
  std::byte* word;
  std::uint32_t value;
};

/// For the handlers, which are given nothing. Only one thread meddles.
struct State {
  std::array<std::span<std::byte>, kMostRegions> regions;
  std::size_t region_count = 0;
  std::array<Change, kMostChanges> changes;
  std::size_t change_count = 0;
  std::size_t next = 0;
  std::size_t seen = 0;   // accesses since the change before
  std::size_t traps = 0;  // in all
  bool meddling = false;
  bool stepping = false;
  greg_t stepped_from = 0;
};
State state;  // NOLINT: see above
struct sigaction segv_before;
struct sigaction trap_before;

void allow(int access) noexcept {
  for (std::size_t i = 0; i < state.region_count; ++i) {
    ::mprotect(state.regions[i].data(), state.regions[i].size(), access);
  }
}
void open() noexcept { allow(PROT_READ | PROT_WRITE); }
void shut() noexcept { allow(PROT_NONE); }

bool ours(const void* address) noexcept {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (std::size_t i = 0; i < state.region_count; ++i) {
    const auto& region = state.regions[i];
    if (byte >= region.data() && byte < region.data() + region.size()) return true;
  }
  return false;
}

void make_due_changes() noexcept {
  ++state.seen;
  while (state.next < state.change_count && state.seen > state.changes[state.next].accesses) {
    const Change& change = state.changes[state.next++];
    std::memcpy(change.word, &change.value, sizeof change.value);
    state.seen = 0;
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (!state.meddling || !ours(info->si_addr)) {
    ::sigaction(number, &segv_before, nullptr);  // a finding: the instruction faults once more
    return;
  }
  auto* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  open();
  state.stepping = true;
  state.stepped_from = registers[REG_RIP];
  registers[REG_EFL] |= kTrapFlag;
}

/// An instruction that repeats itself traps each time. All but the last time are done here, so that
/// it counts as one and costs as little: `rep movsb` and `rep stosb`, of which memcpy and memset
/// are made.
void hasten(greg_t* registers) noexcept {
  const auto* const code = reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]);
  const auto left = static_cast<std::size_t>(registers[REG_RCX]);
  if (code[0] != 0xF3 || left < 2) return;
  auto* const to = reinterpret_cast<std::byte*>(registers[REG_RDI]);
  if (code[1] == 0xA4) {
    const auto* const from = reinterpret_cast<const std::byte*>(registers[REG_RSI]);
    for (std::size_t i = 0; i + 1 < left; ++i) to[i] = from[i];
    registers[REG_RSI] += static_cast<greg_t>(left - 1);
  } else if (code[1] == 0xAA) {
    for (std::size_t i = 0; i + 1 < left; ++i) to[i] = static_cast<std::byte>(registers[REG_RAX]);
  } else {
    return;
  }
  registers[REG_RDI] += static_cast<greg_t>(left - 1);
  registers[REG_RCX] = 1;
}

void on_step(int number, siginfo_t* /*info*/, void* context) {
  if (!state.stepping) {
    ::sigaction(number, &trap_before, nullptr);
    return;
  }
  auto* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (registers[REG_RIP] == state.stepped_from) {
    hasten(registers);
    return;
  }
  registers[REG_EFL] &= ~kTrapFlag;
  state.stepping = false;
  make_due_changes();
  if (state.next < state.change_count && ++state.traps < kMostTraps) shut();
}

void install() noexcept {
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  action.sa_sigaction = on_fault;
  require(::sigaction(SIGSEGV, &action, &segv_before) == 0, "faults can be handled");
  action.sa_sigaction = on_step;
  require(::sigaction(SIGTRAP, &action, &trap_before) == 0, "traps can be handled");
}

}  // namespace

Meddler::Meddler(const Shared& shared, Script& script) {
  require(!state.meddling && shared.pages.size() <= kMostRegions, "one meddler, few regions");
  state = {};
  state.change_count = script.byte() % (kMostChanges + 1);
  for (std::size_t i = 0; i < state.change_count; ++i) {
    const std::uint8_t accesses = script.byte();
    std::byte* const word = shared.words[script.byte() % shared.words.size()];
    state.changes[i] = {accesses, word, script.number()};
  }
  for (const auto& region : shared.pages) state.regions[state.region_count++] = region;
  if (state.change_count == 0) return;
  install();
  state.meddling = true;
  shut();
}

Meddler::~Meddler() {
  if (!state.meddling) return;
  state.meddling = false;
  open();
  ::sigaction(SIGSEGV, &segv_before, nullptr);
  ::sigaction(SIGTRAP, &trap_before, nullptr);
}

bool Meddler::works() noexcept { return true; }

#else

Meddler::Meddler(const Shared& shared, Script& script) {
  const std::size_t changes = script.byte() % 65;
  for (std::size_t i = 0; i < changes; ++i) {
    (void)script.byte();
    (void)shared.words[script.byte() % shared.words.size()];
    (void)script.number();
  }
}
Meddler::~Meddler() = default;
bool Meddler::works() noexcept { return false; }

#endif

}  // namespace farandole::fuzz

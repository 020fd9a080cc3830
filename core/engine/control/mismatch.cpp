#include "engine/control/mismatch.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "collectives/registry.h"
#include "engine/base/names.h"
#include "engine/control/world.h"

namespace farandole {

namespace {

std::string disagreement(const Statement& one, const Statement& other) {
  const Signature& a = one.canonical->signature;
  const Signature& b = other.canonical->signature;
  const Rules& rules = rules_of(a.kind);
  if (rules.disagreement != nullptr) {
    if (auto text = rules.disagreement(a, b); !text.empty()) return text;
  }
  if (a.kind != b.kind) {
    return "Mismatched operations: One rank did an " + std::string(rules.name) +
           ", but another rank did an " + std::string(rules_of(b.kind).name) + ".";
  }
  if (a.group.size != b.group.size) {
    const auto size = [](const Signature& signature) {
      return signature.group.size == 0 ? std::string("by itself")
                                       : "in a group of " + std::to_string(signature.group.size);
    };
    return "Mismatched group sizes: One rank submitted it " + size(a) +
           ", but another rank submitted it " + size(b) + ".";
  }
  if (one.group != other.group) {
    return "Mismatched groups: One rank submitted it in group " + one.group +
           ", but another rank submitted it in group " + other.group + ".";
  }
  return {};
}

/// Why it cannot run without members that have joined; empty: it can.
std::string lack(const Key& key, const Signature& signature, const RankSet& absent) {
  if (absent.empty()) return {};
  const Rules& rules = rules_of(signature.kind);
  if (!rules.runs_with_joined || key.process_set != 0) {
    return std::string(rules.name) +
           " is not supported with Join at this time: " + to_string(absent) + " joined.";
  }
  if (rules.rooted && absent.contains(signature.root)) {
    return std::string(rules.name) + " needs its root: rank " + std::to_string(signature.root) +
           " has joined.";
  }
  return {};
}

}  // namespace

std::optional<Error> find_mismatch(KeyState& key_state, const RankSet& absent) {
  const std::span<Statement> said(key_state.tally.statements.data(), key_state.tally.said);
  std::ranges::sort(said, {}, [](const Statement& one) { return one.ranks.lowest(); });
  const Statement& first = said.front();
  // The first statement is also compared with itself, which finds what no rank may ask for.
  std::string text;
  for (const Statement& other : said) {
    text = disagreement(first, other);
    if (!text.empty()) break;
  }
  if (!text.empty() && said.size() > 1) {
    for (std::size_t i = 0; i < said.size(); ++i) {
      std::string ranks = to_string(said[i].ranks);
      if (i == 0) ranks[0] = 'R';
      const Signature& signature = said[i].canonical->signature;
      text += (i == 0 ? " " : "; ") + ranks + ": " + rules_of(signature.kind).describe(signature);
    }
    text += ".";
  }
  if (text.empty()) text = lack(key_state.key, first.canonical->signature, absent);
  if (text.empty()) return std::nullopt;
  std::vector<Rank> ranks;  // the lowest rank of each statement
  for (const Statement& one : said) ranks.push_back(one.ranks.lowest());
  return Error{.code = Code::Mismatch,
               .message = std::move(text),
               .peer = -1,
               .tensor = full_name(key_state.key),
               .missing = std::move(ranks),
               .waited_s = 0.0,
               .cause = nullptr};
}

}  // namespace farandole

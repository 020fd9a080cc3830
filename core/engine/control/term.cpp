#include "engine/control/term.h"

#include "collectives/registry.h"
#include "engine/control/world.h"

namespace rueda {

namespace {

constexpr Rank kMaxQuotedRank = 1 << 20;

}  // namespace

bool Tally::add(const MeaningPtr& meaning, std::string_view group, const RankSet& who) {
  reported.add(who);
  for (std::size_t i = 0; i < said; ++i) {
    if (same_meaning(statements[i].meaning, meaning) && statements[i].group == group) {
      statements[i].ranks.add(who);
      return said == 1;
    }
  }
  if (said == statements.size()) statements.emplace_back();
  Statement& statement = statements[said++];
  statement.meaning = meaning;
  statement.group.assign(group);
  statement.ranks.clear();
  statement.ranks.add(who);
  return said == 1;
}

void Tally::clear() noexcept {
  open = apart = complete = false;
  size_class = 0;
  track = 0;
  reported.clear();
  for (std::size_t i = 0; i < said; ++i) statements[i].meaning.reset();
  said = 0;
}

void OpenTerms::append(Term& term) noexcept {
  term.older = newest_;
  term.newer = nullptr;
  (newest_ != nullptr ? newest_->newer : oldest_) = &term;
  newest_ = &term;
}

void OpenTerms::prepend(Term& term) noexcept {
  term.newer = oldest_;
  term.older = nullptr;
  (oldest_ != nullptr ? oldest_->older : newest_) = &term;
  oldest_ = &term;
}

void OpenTerms::remove(Term& term) noexcept {
  (term.older != nullptr ? term.older->newer : oldest_) = term.newer;
  (term.newer != nullptr ? term.newer->older : newest_) = term.older;
}

std::string describe(const Signature& signature) {
  std::string text(rules_of(signature.kind).name);
  if (signature.kind == Kind::Barrier) return text;
  if (signature.kind == Kind::AddProcessSet) {
    RankSet members;  // of a size that is known to be small: what others said is only quoted
    for (Rank rank : signature.ranks) {
      if (rank >= 0 && rank < kMaxQuotedRank) members.add(rank);
    }
    return text + " of " + to_string(members);
  }
  if (signature.kind == Kind::RemoveProcessSet) {
    return text + " " + std::to_string(signature.root);
  }
  if (signature.kind == Kind::Allreduce || signature.kind == Kind::Reducescatter) {
    text += " " + std::string(name_of(signature.op));
  }
  text += " of " + std::string(name_of(signature.dtype)) + " ";
  if (rules_of(signature.kind).rows_may_differ && !signature.shape.empty()) {
    const std::string shape = to_string(signature.shape);
    text += "[*" + shape.substr(shape.find_first_of(",]"));
  } else {
    text += to_string(signature.shape);
  }
  if (signature.prescale != 1.0 || signature.postscale != 1.0) {
    text += " scaled by " + std::to_string(signature.prescale) + " and " +
            std::to_string(signature.postscale);
  }
  if (signature.kind == Kind::Broadcast) text += " from root " + std::to_string(signature.root);
  if (signature.group.size != 0) {
    text += " in a group of " + std::to_string(signature.group.size);
  }
  if (signature.device != Device::Host) text += " on GPU";
  return text;
}

bool same_meaning(const MeaningPtr& one, const MeaningPtr& other) noexcept {
  return one == other || (one->hash == other->hash && one->signature == other->signature);
}

}  // namespace rueda

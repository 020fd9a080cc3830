#include "engine/control/term.h"

#include "collectives/registry.h"
#include "engine/control/world.h"

namespace rueda {

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

bool same_meaning(const MeaningPtr& one, const MeaningPtr& other) noexcept {
  return one == other || (one->hash == other->hash && one->signature == other->signature);
}

}  // namespace rueda

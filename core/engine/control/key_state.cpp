#include "engine/control/key_state.h"

#include "collectives/registry.h"
#include "engine/control/world.h"

namespace farandole {

bool Tally::add(const CanonicalSignaturePtr& canonical, std::string_view group,
                const RankSet& who) {
  reported.add(who);
  for (std::size_t i = 0; i < said; ++i) {
    if (same_canonical(statements[i].canonical, canonical) && statements[i].group == group) {
      statements[i].ranks.add(who);
      return said == 1;
    }
  }
  if (said == statements.size()) statements.emplace_back();
  Statement& statement = statements[said++];
  statement.canonical = canonical;
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
  for (std::size_t i = 0; i < said; ++i) statements[i].canonical.reset();
  said = 0;
}

void OpenKeys::append(KeyState& key_state) noexcept {
  key_state.older = newest_;
  key_state.newer = nullptr;
  (newest_ != nullptr ? newest_->newer : oldest_) = &key_state;
  newest_ = &key_state;
}

void OpenKeys::prepend(KeyState& key_state) noexcept {
  key_state.newer = oldest_;
  key_state.older = nullptr;
  (oldest_ != nullptr ? oldest_->older : newest_) = &key_state;
  oldest_ = &key_state;
}

void OpenKeys::remove(KeyState& key_state) noexcept {
  (key_state.older != nullptr ? key_state.older->newer : oldest_) = key_state.newer;
  (key_state.newer != nullptr ? key_state.newer->older : newest_) = key_state.older;
}

bool same_canonical(const CanonicalSignaturePtr& one, const CanonicalSignaturePtr& other) noexcept {
  return one == other || (one->hash == other->hash && one->signature == other->signature);
}

}  // namespace farandole

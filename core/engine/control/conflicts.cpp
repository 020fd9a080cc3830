#include "engine/control/conflicts.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/names.h"
#include "engine/control/mismatch.h"

namespace rueda {

namespace {

/// One operation of that name, or one group, and the ranks that have reported it.
struct Meant {
  const Statement* said = nullptr;  ///< of its first key
  RankSet ranks;
  std::vector<KeyState*> key_states;
};

/// The reports differ at most in who brings something.
bool agree(const Tally& tally) {
  if (tally.said == 1) return true;
  const Statement& first = tally.statements.front();
  return std::ranges::all_of(
      std::span(tally.statements).first(tally.said), [&first](const Statement& one) {
        Signature signature = one.canonical->signature;
        signature.absent = first.canonical->signature.absent;
        return signature == first.canonical->signature && one.group == first.group;
      });
}

/// The user's part of a full name.
std::string_view stem(std::string_view full) {
  const auto dot = full.find('.');
  return dot == std::string_view::npos ? full : full.substr(dot + 1);
}

}  // namespace

std::vector<Conflict> find_conflicts(
    KeyState* open, const std::function<const ProcessSet&(const KeyState&)>& set_of,
    const RankSet& waits, const RankSet& joined) {
  // By set and name, then by kind and size of the group.
  using Name = std::tuple<std::int32_t, std::uint32_t, std::string>;
  std::map<Name, std::map<std::pair<std::string, std::uint32_t>, Meant>> names;
  for (KeyState* key_state = open; key_state != nullptr; key_state = key_state->newer) {
    const Tally& tally = key_state->tally;
    if (tally.complete || !agree(tally))
      continue;  // ranks that differ under one key are a mismatch, found when it is complete
    const Statement& said = tally.statements.front();
    if (rules_of(said.canonical->signature.kind).matched_by_count) continue;
    RankSet accounted = waits;
    accounted.add(joined);
    if (!accounted.covers(set_of(*key_state).members)) continue;
    const std::string full = said.group.empty() ? full_name(key_state->key) : said.group;
    const std::string prefix = full.substr(0, full.find('.'));
    Meant& meant = names[{key_state->key.process_set, key_state->key.generation,
                          std::string(stem(full))}][{prefix, said.canonical->signature.group.size}];
    if (meant.said == nullptr) meant.said = &said;
    meant.ranks.add(tally.reported);
    meant.key_states.push_back(key_state);
  }
  std::vector<Conflict> conflicts;
  for (auto& [name, variants] : names) {
    if (variants.size() < 2) continue;
    RankSet accounted;
    bool each_once = true;
    for (const auto& [variant, meant] : variants) {
      each_once = each_once && !accounted.overlaps(meant.ranks);
      accounted.add(meant.ranks);
    }
    accounted.add(joined);
    KeyState* const first = variants.begin()->second.key_states.front();
    if (!each_once || !accounted.covers(set_of(*first).members)) continue;
    KeyState all;  // as if all ranks had reported it under one key
    all.key = first->key;
    for (const auto& [variant, meant] : variants) {
      (void)all.tally.add(meant.said->canonical, meant.said->group, meant.ranks);
    }
    auto error = find_mismatch(all, {});
    if (!error) continue;
    Conflict& conflict = conflicts.emplace_back();
    conflict.error = *std::move(error);
    for (auto& [variant, meant] : variants) {
      conflict.key_states.insert(conflict.key_states.end(), meant.key_states.begin(),
                                 meant.key_states.end());
    }
  }
  return conflicts;
}

}  // namespace rueda

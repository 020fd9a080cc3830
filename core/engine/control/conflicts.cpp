#include "engine/control/conflicts.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/names.h"
#include "engine/control/verdict.h"

namespace rueda {

namespace {

/// What the name stands for on some ranks: one operation, or all members of a group.
struct Meant {
  const Statement* said = nullptr;  ///< by the first of its terms
  RankSet ranks;
  std::vector<Term*> terms;
};

/// The user's part of a full name.
std::string_view stem(std::string_view full) {
  const auto dot = full.find('.');
  return dot == std::string_view::npos ? full : full.substr(dot + 1);
}

}  // namespace

std::vector<Conflict> find_conflicts(Term* open,
                                     const std::function<const ProcessSet&(const Term&)>& set_of,
                                     const RankSet& waits, const RankSet& joined) {
  // By set and name, then by kind and size of the group.
  using Name = std::tuple<std::int32_t, std::uint32_t, std::string>;
  std::map<Name, std::map<std::pair<std::string, std::uint32_t>, Meant>> names;
  for (Term* term = open; term != nullptr; term = term->newer) {
    const Tally& tally = term->tally;
    if (tally.complete || tally.said != 1)
      continue;  // if they differ here, that is found otherwise
    const Statement& said = tally.statements.front();
    if (rules_of(said.meaning->signature.kind).matched_by_count) continue;
    RankSet accounted = waits;
    accounted.add(joined);
    if (!accounted.covers(set_of(*term).members)) continue;
    const std::string full = said.group.empty() ? full_name(term->key) : said.group;
    const std::string prefix = full.substr(0, full.find('.'));
    Meant& meant = names[{term->key.process_set, term->key.generation, std::string(stem(full))}]
                        [{prefix, said.meaning->signature.group.size}];
    if (meant.said == nullptr) meant.said = &said;
    meant.ranks.add(tally.reported);
    meant.terms.push_back(term);
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
    Term* const first = variants.begin()->second.terms.front();
    if (!each_once || !accounted.covers(set_of(*first).members)) continue;
    Term all;  // as if they had all said it about one key
    all.key = first->key;
    for (const auto& [variant, meant] : variants) {
      (void)all.tally.add(meant.said->meaning, meant.said->group, meant.ranks);
    }
    auto error = verdict(all, {});
    if (!error) continue;
    Conflict& conflict = conflicts.emplace_back();
    conflict.error = *std::move(error);
    for (auto& [variant, meant] : variants) {
      conflict.terms.insert(conflict.terms.end(), meant.terms.begin(), meant.terms.end());
    }
  }
  return conflicts;
}

}  // namespace rueda

#include "engine/control/conflicts.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/registry.h"
#include "engine/base/wording.h"
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

constexpr std::string_view kMark = ".lacks.";

/// One operation of that name, or one group, and the ranks that have reported it.
struct Meant {
  const Statement* said = nullptr;  ///< of its first key
  bool sparse = false;              ///< it carries the values of a sparse tensor of that name
  std::string lacking;              ///< which variables have no gradient, in its name
  bool waited = true;               ///< by all members
  TimePoint since;                  ///< of the youngest of its keys
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

/// A name of gradients without the end that says which variables have none on that rank:
/// "gradients_0.lacks.1.3_values" is "gradients_0_values", and ".lacks.1.3" was left out
/// (src/horovod/gradients/reduction.py).
std::pair<std::string, std::string> without_lacking(std::string_view name) {
  const auto at = name.find(kMark);
  if (at == std::string_view::npos) return {std::string(name), {}};
  const auto end = std::min(name.find_first_not_of(".0123456789", at + kMark.size()), name.size());
  return {std::string(name.substr(0, at)).append(name.substr(end)),
          std::string(name.substr(at, end - at))};
}

/// By set and name, then by kind, missing gradients and size of the group.
using Name = std::tuple<std::int32_t, std::uint32_t, std::string>;
using Names = std::map<Name, std::map<std::pair<std::string, std::uint32_t>, Meant>>;

/// Lets the allgathers of a sparse tensor `x`, which frontends call x.values and x.indices, or
/// x_values and x_indices, stand for `x` as well, if some rank has something else of that name.
void join_parts_of_sparse(Names& names) {
  constexpr std::string_view kValues = "values";
  for (auto& [name, variants] : names) {
    const auto& [set, generation, text] = name;
    if (variants.size() != 1 || text.size() < kValues.size() + 2 || !text.ends_with(kValues)) {
      continue;
    }
    const auto& [variant, values] = *variants.begin();
    const std::string start = text.substr(0, text.size() - kValues.size());
    if (values.said->canonical->signature.kind != Kind::Allgather ||
        (start.back() != '.' && start.back() != '_')) {
      continue;
    }
    const auto whole = names.find({set, generation, start.substr(0, start.size() - 1)});
    if (whole == names.end() || whole->second.contains(variant)) continue;
    Meant& meant = whole->second[variant] = values;
    meant.sparse = true;
    const auto indices = names.find({set, generation, start + "indices"});
    if (indices == names.end()) continue;
    for (const auto& [same, also] : indices->second) {  // they fail with the values
      meant.key_states.insert(meant.key_states.end(), also.key_states.begin(),
                              also.key_states.end());
    }
  }
}

std::string describe_lacking(const Names::mapped_type& variants) {
  std::string text = " Ranks have gradients for different variables. Places of variables without:";
  const char* separator = " ";
  for (const auto& [variant, meant] : variants) {
    std::string places = meant.lacking.empty() ? "none" : meant.lacking.substr(kMark.size());
    std::ranges::replace(places, '.', ' ');
    text += separator + to_string(meant.ranks) + ": " + places;
    separator = "; ";
  }
  return text +
         " (counted from 0, in the order of the variables whose gradients are reduced). In a "
         "graph, gradients are there for all its runs or for none. Let all ranks use every part "
         "of the model, give the other variables zeros "
         "(tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)), or run the "
         "step outside of a graph (model.compile(run_eagerly=True), no tf.function): there, "
         "ranks without a gradient bring zeros.";
}

/// Adds what is as old as the conflict and of its set.
void add_old_ones(Conflict& conflict, KeyState* open, TimePoint old) {
  const Key& key = conflict.key_states.front()->key;
  for (KeyState* other = open; other != nullptr; other = other->newer) {
    if (other->tally.complete || other->tally.since > old ||
        other->key.process_set != key.process_set || other->key.generation != key.generation ||
        std::ranges::find(conflict.key_states, other) != conflict.key_states.end()) {
      continue;
    }
    conflict.key_states.push_back(other);
  }
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

std::vector<Conflict> find_conflicts(
    KeyState* open, const std::function<const ProcessSet&(const KeyState&)>& set_of,
    const RankSet& waits, const RankSet& joined, TimePoint old) {
  Names names;
  for (KeyState* key_state = open; key_state != nullptr; key_state = key_state->newer) {
    const Tally& tally = key_state->tally;
    if (tally.complete || !agree(tally))
      continue;  // ranks that differ under one key are a mismatch, found when it is complete
    const Statement& said = tally.statements.front();
    if (rules_of(said.canonical->signature.kind).matched_by_count) continue;
    RankSet accounted = waits;
    accounted.add(joined);
    const std::string full = said.group.empty() ? full_name(key_state->key) : said.group;
    const std::string prefix = full.substr(0, full.find('.'));
    const auto [name, lacking] = without_lacking(stem(full));
    Meant& meant = names[{key_state->key.process_set, key_state->key.generation, name}]
                        [{prefix + lacking, said.canonical->signature.group.size}];
    meant.lacking = lacking;
    if (meant.said == nullptr) meant.said = &said;
    meant.waited = meant.waited && accounted.covers(set_of(*key_state).members);
    meant.since = std::max(meant.since, tally.since);
    meant.ranks.add(tally.reported);
    meant.key_states.push_back(key_state);
  }
  join_parts_of_sparse(names);
  std::vector<Conflict> conflicts;
  for (auto& [name, variants] : names) {
    if (variants.size() < 2) continue;
    RankSet accounted;
    bool each_once = true;
    bool waited = true;
    bool sparse = false;
    bool lacks = false;
    bool all_old = true;
    for (const auto& [variant, meant] : variants) {
      waited = waited && meant.waited;
      sparse = sparse || meant.sparse;
      lacks = lacks || meant.lacking != variants.begin()->second.lacking;
      all_old = all_old && meant.since <= old;
      each_once = each_once && !accounted.overlaps(meant.ranks);
      accounted.add(meant.ranks);
    }
    accounted.add(joined);
    KeyState* const first = variants.begin()->second.key_states.front();
    if (!waited && !((sparse || lacks) && all_old)) continue;
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
    if (sparse || lacks) add_old_ones(conflict, open, old);
    if (lacks) {
      conflict.error.message += describe_lacking(variants);
    } else if (sparse) {
      conflict.error.message +=
          " A sparse tensor travels as an ALLGATHER of its values, a dense one as an ALLREDUCE: "
          "ranks must agree on what is sparse; sparse_as_dense=True makes all gradients dense.";
    }
  }
  return conflicts;
}

}  // namespace farandole

/// What a rank knows about one key: the meaning of its reports, its number, who has said it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/signature.h"
#include "engine/base/rank_set.h"
#include "engine/control/numbering.h"
#include "engine/timeline/timeline_event.h"
#include "types.h"

namespace rueda {

/// A signature reduced to what ranks must agree on: no group name, and first dimension 0 where the
/// number of rows may differ. `number`: in the dispatch stream; 0 while it has none.
struct Meaning {
  Signature signature;
  std::uint64_t hash = 0;
  std::uint32_t number = 0;
};
using MeaningPtr = std::shared_ptr<Meaning>;

/// What some ranks said about a key.
struct Statement {
  MeaningPtr meaning;
  std::string group;  ///< full name; empty: none
  RankSet ranks;
};

/// Who has reported one use of a key, at a node or the caller.
struct Tally {
  bool open = false;
  bool apart = false;     ///< node: forwarded rank by rank from here on
  bool complete = false;  ///< caller: everybody has reported or joined
  std::uint8_t size_class = 0;
  Track track = 0;  ///< caller: where the timeline draws this use
  RankSet reported;
  std::vector<Statement> statements;  ///< the first `said` are in use; the rest is kept memory
  std::size_t said = 0;
  TimePoint since;

  /// Notes that `who` said this; true if it is the first or equals what all others said.
  bool add(const MeaningPtr& meaning, std::string_view group, const RankSet& who);
  void clear() noexcept;
};

struct Term;

/// A number of a key, with the group it was last used in: that goes without saying then.
struct Definition {
  Term* term = nullptr;
  std::string group;
  std::uint32_t uses = 0;  ///< dispatches and failures under this number
};
using DefinitionItem = Numbering<Definition>::Item;

struct Term {
  Key key;
  std::uint64_t hash = 0;
  bool in_use = false;                   ///< false: waits in the pool for its next key
  DefinitionItem* definition = nullptr;  ///< the number in use; null: none
  std::uint32_t definitions = 0;         ///< numbers that mean this term, given up ones too

  // This rank's own submission in flight.
  std::uint64_t ticket = 0;  ///< 0: none
  MeaningPtr meaning;        ///< of the last submission
  std::shared_ptr<const Signature>
      submitted;  ///< as submitted, if the meaning leaves something out
  std::string group;
  std::uint8_t size_class = 0;
  bool published = false;
  bool waited = false;

  // What others said, at nodes and the caller.
  Tally tally;
  Term* older = nullptr;  ///< open tallies in the order of opening
  Term* newer = nullptr;

  [[nodiscard]] bool idle() const noexcept {
    return definitions == 0 && ticket == 0 && !tally.open;
  }
};

/// Open tallies, oldest first.
class OpenTerms {
 public:
  void append(Term& term) noexcept;
  void prepend(Term& term) noexcept;
  void remove(Term& term) noexcept;
  [[nodiscard]] Term* oldest() const noexcept { return oldest_; }

 private:
  Term* oldest_ = nullptr;
  Term* newest_ = nullptr;
};

[[nodiscard]] bool same_meaning(const MeaningPtr& one, const MeaningPtr& other) noexcept;

}  // namespace rueda

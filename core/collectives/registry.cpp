#include "collectives/registry.h"

#include "collectives/collective.h"

namespace farandole {

namespace {

constexpr Rules kUnknown{.name = "UNKNOWN", .prefix = "unknown", .describe = describe_tensor};
constexpr Rules kJoin{.name = "JOIN",
                      .prefix = "join",
                      .describe = describe_tensor,
                      .matched_by_count = true,
                      .without_tensors = true};

}  // namespace

const Collective* find_collective(Kind kind) noexcept {
  for (const Collective* collective : kCollectives) {
    if (collective->kind == kind) return collective;
  }
  return nullptr;
}

const Rules& rules_of(Kind kind) noexcept {
  if (const Collective* collective = find_collective(kind)) return collective->rules;
  return kind == Kind::Join ? kJoin : kUnknown;
}

}  // namespace farandole

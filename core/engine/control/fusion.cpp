#include "engine/control/fusion.h"

#include "collectives/registry.h"

namespace farandole {

namespace {

bool may_fuse(const Ready& one, const Ready& other, const FusionOptions& options) {
  const Signature& a = *one.signature;
  const Signature& b = *other.signature;
  if (options.disable_group_fusion && (one.group == 0 || one.group != other.group)) return false;
  return one.process_set == other.process_set && a.kind == b.kind && a.dtype == b.dtype &&
         a.absent == b.absent && a.op == b.op && a.root == b.root && a.device == b.device &&
         a.prescale == b.prescale && a.postscale == b.postscale;
}

}  // namespace

std::vector<std::vector<std::size_t>> plan(std::span<const Ready> ready,
                                           const FusionOptions& options) {
  std::vector<std::vector<std::size_t>> batches;
  std::vector<bool> taken(ready.size(), false);
  for (std::size_t head = 0; head < ready.size(); ++head) {
    if (taken[head]) continue;
    auto& batch = batches.emplace_back(1, head);
    if (options.threshold_bytes == 0 || !rules_of(ready[head].signature->kind).fusable) continue;
    std::size_t bytes = ready[head].bytes;
    std::size_t skipped = 0;
    for (std::size_t i = head + 1; i < ready.size(); ++i) {
      if (bytes + skipped > options.threshold_bytes) break;
      if (taken[i]) continue;
      if (may_fuse(ready[head], ready[i], options) &&
          bytes + ready[i].bytes <= options.threshold_bytes) {
        batch.push_back(i);
        taken[i] = true;
        bytes += ready[i].bytes;
      } else {
        skipped += ready[i].bytes;
      }
    }
  }
  return batches;
}

}  // namespace farandole

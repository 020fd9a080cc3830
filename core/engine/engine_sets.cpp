/// The table of process sets: what is there from the start, changes, and questions.

#include "engine/engine.h"

namespace rueda {

namespace {

static_assert(kMaxProcessSets <= kShmChannels, "each may need a channel of shared memory");

/// Of what moves no data of the user.
TensorRequest no_tensor() { return {.dtype = DType::UInt8, .shape = {}}; }

}  // namespace

/// The table of backends, with those sets that exist from the start.
Result<void> Engine::open_sets() {
  dispatcher_ = std::make_unique<Dispatcher>(
      peers_.backend(),
      [this](std::int32_t id, std::span<const Rank> ranks) {
        return peers_.fabric().open(ranks, id);
      },
      options_.operation_timeout, &timeline_);
  const auto& wanted = options_.negotiator.process_sets;
  const auto sets = negotiator_->process_sets();
  if (sets.size() != wanted.size() + 1) {  // one was refused
    World world(options_.groups, options_.hosts, options_.rank);
    for (const auto& ranks : wanted) {
      if (auto fine = world.check_addition(ranks); !fine) return fine;
      world.add_set(ranks);
    }
  }
  for (const auto& [id, ranks] : sets) {
    if (id == 0) continue;
    if (auto opened = dispatcher_->open(id, ranks); !opened) return opened;
  }
  return {};
}

/// With mutex_ held, as what a set is called or who is in it may change.
const Members& Engine::members_of(const ProcessSet& set) {
  auto found = members_.find(set.generation);
  if (found == members_.end()) {
    found =
        members_.emplace(set.generation, peers_.fabric().members(set.members.to_vector())).first;
  }
  return found->second;
}

/// What this rank can see by itself; whether the set is a duplicate is decided at its place among
/// the dispatches, the same way on all ranks.
Result<void> Engine::check_change(const Request& request) const {
  if (request.kind == Kind::AddProcessSet) return check_members(request.ranks, options_.size);
  if (request.kind != Kind::RemoveProcessSet) return {};
  if (negotiator_->process_set(request.root) != nullptr) return {};
  return Error{.code = Code::InvalidArgument,
               .message = "Process set " + std::to_string(request.root) +
                          " does not exist, or has not been registered"};
}

Result<Handle> Engine::add_process_set(std::vector<Rank> ranks) {
  Request request;
  request.kind = Kind::AddProcessSet;
  request.ranks = std::move(ranks);
  request.tensors.push_back(no_tensor());
  request.demanded = true;
  return submit(std::move(request));
}

Result<Handle> Engine::remove_process_set(std::int32_t id) {
  Request request;
  request.kind = Kind::RemoveProcessSet;
  request.root = id;
  request.tensors.push_back(no_tensor());
  request.demanded = true;
  return submit(std::move(request));
}

std::map<std::int32_t, std::vector<Rank>> Engine::process_sets() const {
  if (in_child()) return {};
  const std::lock_guard lock(mutex_);
  return negotiator_ ? negotiator_->process_sets() : decltype(negotiator_->process_sets()){};
}

}  // namespace rueda

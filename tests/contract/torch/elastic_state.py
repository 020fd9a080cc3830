"""Elastic state and sampler on real ranks, in a job whose hosts do not change."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.common.elastic import ObjectState, State
from horovod.torch.elastic.state import (
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)

CASES = Cases()


def network(seed: int) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


def training(seed: int, distributed: bool = False) -> tuple[torch.nn.Linear, Any]:
    """A model and its optimizer, both different on every rank, after a step."""
    model = network(seed + hvd.rank())
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train(model, optimizer)
    return model, optimizer


def train(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 3) * (hvd.rank() + 1)).square().mean().backward()
    optimizer.step()


def everything(model: torch.nn.Module, optimizer: Any) -> Any:
    """What must come back, as plain numbers."""
    state = optimizer.state_dict()
    momenta = [entry["momentum_buffer"].tolist() for entry in state["state"].values()]
    return [value.tolist() for value in model.state_dict().values()], momenta, state["param_groups"]


def assert_same_everywhere(value: Any) -> None:
    assert hvd.allgather_object(value) == [value] * hvd.size()


def of_rank_0(value: Any) -> Any:
    return hvd.broadcast_object(value)


# -- saving, restoring, making equal -------------------------------------------------------------------------


@CASES.add
def sync_takes_over_what_rank_0_has() -> None:
    model, optimizer = training(100)
    expected = of_rank_0(everything(model, optimizer))
    state: Any = hvd.elastic.TorchState(model, optimizer, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    state.sync()
    assert (state.batch, state.epoch) == (20, 10)
    assert state.model is model
    assert state.optimizer is optimizer
    assert everything(model, optimizer) == expected


@CASES.add
def restore_goes_back_to_the_last_commit_as_often_as_needed() -> None:
    model, optimizer = training(200)
    state: Any = hvd.elastic.TorchState(model, optimizer, batch=0)
    state.sync()
    for batch in (1, 2):
        saved = copy.deepcopy(everything(model, optimizer))
        for _ in range(2):
            train(model, optimizer)
            state.batch = 99
            assert everything(model, optimizer) != saved
            state.restore()
            assert everything(model, optimizer) == saved
            assert state.batch == batch - 1
        train(model, optimizer)
        state.batch = batch
        state.commit()
    state.batch = 99
    state.restore()
    assert state.batch == 2


@CASES.add
def restore_after_the_first_sync_does_not_bring_back_this_ranks_beginning() -> None:
    model, optimizer = training(300)
    state: Any = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    state.sync()
    expected = of_rank_0(everything(model, optimizer))
    train(model, optimizer)
    state.restore()
    assert everything(model, optimizer) == expected


@CASES.add
def sync_broadcasts_models_live_and_plain_values_as_saved() -> None:
    model = network(400)
    state: Any = hvd.elastic.TorchState(model, step=5)
    with torch.no_grad():
        model.weight.fill_(float(hvd.rank() + 3))
    state.step = 6
    state.sync()
    assert state.step == 5
    assert model.weight.tolist() == [[3.0] * 3] * 2


@CASES.add
def schedulers_and_other_stateful_objects_are_saved_and_made_equal() -> None:
    model, optimizer = training(450)
    warm_up = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=hvd.rank() + 1)
    loader = Loader(hvd.rank() + 5)
    state: Any = hvd.elastic.TorchState(model, optimizer, warm_up=warm_up, plateau=plateau, loader=loader)
    warm_up.step()
    plateau.step(1.0 + hvd.rank())
    state.sync()
    assert_same_everywhere((warm_up.last_epoch, warm_up.get_last_lr(), plateau.best, plateau.patience))
    assert (plateau.best, plateau.patience, loader.position) == (1.0, 1, 5)
    before = copy.deepcopy((warm_up.state_dict(), plateau.state_dict()))
    warm_up.step()
    plateau.step(0.5)
    loader.position += 3
    loader.history.append(3)
    state.restore()
    assert (warm_up.state_dict(), plateau.state_dict()) == before
    assert (loader.position, loader.history) == (5, [])
    assert warm_up.optimizer is optimizer


class Loader:
    """Has a position, as ``torchdata.stateful_dataloader.StatefulDataLoader`` has."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.history: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.history = state["position"], state["history"]


def drawn() -> list[float]:
    return [random.random(), float(np.random.random()), torch.rand(()).item()]


def seed_by_rank() -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(70 + hvd.rank())


@CASES.add
def each_rank_keeps_its_own_random_stream_and_goes_back_to_it() -> None:
    seed_by_rank()
    expected = [drawn(), drawn()]
    seed_by_rank()
    state: Any = hvd.elastic.TorchState(random=hvd.elastic.RandomState())
    state.sync()
    assert drawn() == expected[0]
    state.commit()
    for _ in range(2):
        assert drawn() == expected[1]
        state.restore()
    state.sync()
    assert drawn() == expected[1]
    assert [each for each in hvd.allgather_object(expected) if each == expected] == [expected]


@CASES.add
def a_newcomer_draws_neither_what_it_brought_nor_what_rank_0_draws() -> None:
    seed_by_rank()
    kept = hvd.elastic.RandomState()
    hvd.elastic.TorchState(random=kept).sync()
    seed_by_rank()
    mine = kept if hvd.rank() == 0 else hvd.elastic.RandomState()
    hvd.elastic.TorchState(random=mine).sync()
    after = drawn()
    seed_by_rank()
    assert (after == drawn()) == (hvd.rank() == 0)
    streams = hvd.allgather_object(after)
    assert len({tuple(stream) for stream in streams}) == hvd.size()


@CASES.add
def with_a_seed_a_newcomer_draws_what_the_lost_rank_would_have_drawn() -> None:
    state: Any = hvd.elastic.TorchState(random=hvd.elastic.RandomState(seed=5))
    state.sync()
    seen = []
    for _ in range(3):
        state.commit()
        seen.append(drawn())
    assert len({tuple(each) for all_ in hvd.allgather_object(seen) for each in all_}) == 3 * hvd.size()
    state.restore()
    assert drawn() == seen[-1]
    # The same job again: at its second commit all but rank 0 are replaced.
    survivor: Any = hvd.elastic.TorchState(random=hvd.elastic.RandomState(seed=5))
    survivor.sync()
    again = []
    for _ in range(2):
        survivor.commit()
        again.append(drawn())
    if hvd.rank() != 0:
        seed_by_rank()
        survivor = hvd.elastic.TorchState(random=hvd.elastic.RandomState(seed=5))
    survivor.restore()
    survivor.sync()
    assert drawn() == seen[1]
    survivor.commit()
    assert [*again, drawn()] == seen


@CASES.add
def an_epoch_that_goes_on_after_a_rollback_draws_what_it_would_have_drawn() -> None:
    """Whichever batch was committed last, also that at the end of the epoch; a new loader draws its seed."""
    data = torch.utils.data.TensorDataset(torch.arange(8 * hvd.size()))
    for seed in (5, None):
        for given in (False, True):
            for committed in (0, 1, 3, 4, 5):
                for batched in (True, False):
                    runs = []
                    for failing in (False, True):
                        seed_by_rank()
                        sampler = hvd.elastic.ElasticSampler(data)
                        state: Any = hvd.elastic.TorchState(
                            sampler=sampler, random=hvd.elastic.RandomState(seed), epoch=0
                        )
                        state.sync()
                        generator = torch.Generator().manual_seed(3) if given else None
                        runs.append(epochs(state, data, generator, committed, batched, failing))
                    assert runs[0] == runs[1], (seed, given, committed, batched)


def epochs(
    state: Any, data: Any, generator: torch.Generator | None, committed: int, batched: bool, failing: bool
) -> list[tuple[Any, ...]]:
    """Data and draws of two epochs of four batches: a commit after so many batches (5: when the
    second epoch begins), and after the next batch a rollback."""
    seen: list[tuple[Any, ...]] = []
    kept = 0
    batch_size = 2 if batched else None
    while state.epoch < 2:
        loader = torch.utils.data.DataLoader(
            data, batch_size=batch_size, sampler=state.sampler, generator=generator
        )
        for index, (numbers,) in enumerate(loader):
            seen.append((state.epoch, numbers.tolist(), *drawn()))
            state.sampler.record_batch(index, batch_size or 1)
            if state.epoch == 0 and len(seen) == committed:
                state.commit()
                kept = len(seen)
            elif failing and len(seen) == committed + 1:
                failing = False
                state.restore()
                state.sync()
                del seen[kept:]
                break
        else:
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            if committed == 5 and state.epoch == 1:
                state.commit()
                kept = len(seen)
    return seen


@CASES.add
def further_models_and_no_model_at_all() -> None:
    generator, critic = network(500 + hvd.rank()), network(600 + hvd.rank())
    state: Any = hvd.elastic.TorchState(generator=generator, critic=critic, best=None)
    assert state.model is None
    assert state.optimizer is None
    state.sync()
    for model in (generator, critic):
        assert_same_everywhere([value.tolist() for value in model.state_dict().values()])
    with torch.no_grad():
        critic.weight.zero_()
    state.restore()
    assert critic.weight.abs().sum() > 0


@CASES.add
def an_assigned_model_is_saved_at_once_and_a_plain_value_is_not() -> None:
    state: Any = hvd.elastic.TorchState(network(700), step=1)
    other = network(701)
    before = other.weight.clone()
    state.model = other
    state.step = 2
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert state.model is other
    assert torch.equal(other.weight, before)
    assert state.step == 1


@CASES.add
def distributed_optimizers_are_restored_with_steps_in_flight() -> None:
    model, optimizer = training(800, distributed=True)
    state: Any = hvd.elastic.TorchState(model, optimizer)
    state.sync()
    expected = copy.deepcopy(everything(model, optimizer))
    model(torch.ones(4, 3)).mean().backward()
    hvd.barrier()
    state.restore()
    hvd.shutdown()  # names stay in flight as long as their world
    hvd.init()
    assert everything(model, optimizer) == expected
    train(model, optimizer)
    assert_same_everywhere(everything(model, optimizer))


class Counter:
    def __init__(self, value: int) -> None:
        self.value = value


class CounterHandler(StateHandler):
    def __init__(self, value: Counter) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self.saved = self.value.value

    def restore(self) -> None:
        self.value.value = self.saved

    def sync(self) -> None:
        self.value.value = hvd.broadcast_object(self.value.value, name="counter")


@CASES.add
def types_of_users_have_handlers_of_users() -> None:
    before = list(get_handler_registry())
    set_handler_registry([*get_handler_registry(), (Counter, CounterHandler)])
    try:
        counter = Counter(hvd.rank() + 7)
        state: Any = hvd.elastic.TorchState(counter=counter)
        state.sync()
        assert counter.value == 7
        counter.value = 9
        state.restore()
        assert counter.value == 7
        state.counter = Counter(11)
        state.counter.value = 12
        state.restore()
        assert state.counter.value == 11
    finally:
        set_handler_registry(before)
    with pytest.raises(NotImplementedError):
        StateHandler(1).save()
    assert isinstance(ModelStateHandler(network(1)).value, torch.nn.Module)


@CASES.add
def a_scaler_begins_its_step_anew_after_going_back() -> None:
    net = network(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    state = hvd.elastic.TorchState(net, optimizer, scaler=scaler)

    def half_a_step() -> None:
        loss = sum(parameter.sum() for parameter in net.parameters())
        scaler.scale(loss).backward()  # type: ignore[arg-type]
        scaler.unscale_(optimizer)
        scaler.step(optimizer)

    half_a_step()
    state.restore()
    half_a_step()
    state.sync()
    half_a_step()
    scaler.update()
    state.commit()
    half_a_step()
    scaler.update()


@CASES.add
def a_state_without_values_exchanges_nothing() -> None:
    def refuse(_: Any) -> Any:
        raise AssertionError("nothing to send")

    state = ObjectState(refuse, hvd.rank)
    state.save()
    state.restore()
    state.sync()
    for method in (
        State(refuse, hvd.rank).save,
        State(refuse, hvd.rank).restore,
        State(refuse, hvd.rank).sync,
    ):
        with pytest.raises(NotImplementedError):
            method()


# -- the sampler --------------------------------------------------------------------------------------------


@CASES.add
def the_sampler_distributes_what_is_left() -> None:
    size, each, batch = hvd.size(), 8, 2
    data = list(range(each * size))
    sampler = hvd.elastic.ElasticSampler(data, shuffle=False)
    state: Any = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    assert sampler.epoch == 0
    assert list(sampler) == data[hvd.rank() :: size]
    assert len(sampler) == each

    sampler.record_batch(0, batch)
    assert sampler.processed_num == batch * size
    assert list(sampler) == data[hvd.rank() :: size]  # only reset and sync distribute again

    state.commit()
    sampler.record_batch(1, batch)
    state.restore()
    assert sampler.processed_num == batch * size
    state.sync()
    assert sampler.remaining_indices == data[batch * size :]
    assert len(sampler) == each - batch
    assert list(sampler) == data[batch * size :][hvd.rank() :: size]

    sampler.set_epoch(1)
    assert sampler.processed_num == 0
    assert len(sampler) == each
    assert_same_everywhere(sampler.state_dict())


@CASES.add
def shuffled_samples_are_dealt_out_without_gaps() -> None:
    for length in (1, 5, 6, 13):
        sampler = hvd.elastic.ElasticSampler(range(length), seed=3)
        parts = hvd.allgather_object(list(sampler))
        assert {len(part) for part in parts} == {len(sampler)}
        assert sorted({index for part in parts for index in part}) == list(range(length))
        sampler.set_epoch(1)
        assert_same_everywhere(sampler.remaining_indices)


@CASES.add
def a_sampler_feeds_a_data_loader() -> None:
    data: Any = torch.arange(4 * hvd.size())
    sampler = hvd.elastic.ElasticSampler(data)
    seen = [int(value) for batch in torch.utils.data.DataLoader(data, 2, sampler=sampler) for value in batch]
    assert sorted(index for part in hvd.allgather_object(seen) for index in part) == data.tolist()

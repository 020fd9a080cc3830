"""Notices of changed hosts, and the elastic loop, on real ranks whose hosts stay as they are."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from tests.contract.torch.elastic_state import (
    assert_same_everywhere,
    everything,
    network,
    of_rank_0,
    train,
    training,
)
from tests.contract.torch.lent import contents, filled
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.errors import MismatchError

CASES = Cases()

REMOVED, ADDED = 1, 2


@CASES.add
def without_notifications_a_check_passes() -> None:
    state: Any = hvd.elastic.TorchState(step=0)
    for _ in range(3):
        state.commit()
        state.check_host_updates()


@CASES.add
def all_ranks_hear_of_a_change_at_the_same_check() -> None:
    state: Any = hvd.elastic.TorchState(step=0)
    now = int(time.time())
    for messages, skip_sync in (
        ([(now, REMOVED)], True),
        ([(now + 1, ADDED)], False),
        ([(now + 2, REMOVED), (now + 3, ADDED)], False),
        ([(now + 4, REMOVED), (now + 5, REMOVED)], True),
    ):
        if hvd.rank() == 0:
            for message in messages:
                state.on_hosts_updated(*message)
        state.step += 1
        with pytest.raises(HostsUpdatedInterrupt) as interrupt:
            state.commit()
        assert interrupt.value.skip_sync is skip_sync
        state.commit()
    if hvd.rank() == 0:
        state.on_hosts_updated(now, ADDED)  # old news
    state.commit()
    assert state.step == 4


@CASES.add
def only_rank_0_is_listened_to() -> None:
    state: Any = hvd.elastic.TorchState()
    if hvd.rank() != 0:
        state.on_hosts_updated(int(time.time()), ADDED)
    state.check_host_updates()


@CASES.add
def a_reset_forgets_messages_and_calls_back_in_order() -> None:
    state: Any = hvd.elastic.TorchState()
    calls: list[str] = []
    state.register_reset_callbacks([lambda: calls.append("a"), lambda: calls.append("b")])
    state.register_reset_callbacks([lambda: calls.append("c")])
    state.on_hosts_updated(int(time.time()), ADDED)
    state.on_reset()
    assert calls == ["a", "b", "c"]
    state.check_host_updates()


@CASES.add
def newcomers_get_all_parts_of_the_moment_of_the_check() -> None:
    model = network(950)
    state: Any = hvd.elastic.TorchState(model, step=0)

    @hvd.elastic.run
    def fit(state: Any) -> tuple[int, float]:
        if state.step == 0:
            with torch.no_grad():
                model.weight.fill_(1.0)
            state.step = 1
            if hvd.rank() == 0:
                notification_manager.handle_hosts_updated(int(time.time()), ADDED)
            state.check_host_updates()
        return state.step, model.weight.mean().item()

    assert fit(state) == (1, 1.0)
    state.restore()
    assert (state.step, model.weight.mean().item()) == (1, 1.0)


@CASES.add
def what_is_written_between_a_commit_and_a_sync_is_saved_by_the_sync() -> None:
    model, optimizer = training(960)
    state: Any = hvd.elastic.TorchState(model, optimizer)
    state.sync()
    if hvd.rank() == 0:
        state.on_hosts_updated(int(time.time()), ADDED)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    with torch.no_grad():
        model.bias.fill_(2.0)  # by a reset callback, for instance
    optimizer.param_groups[0]["lr"] = 0.5
    state.sync()
    expected = copy.deepcopy(everything(model, optimizer))
    assert expected[0][1] == [2.0, 2.0]
    for _ in range(2):
        train(model, optimizer)
        state.restore()
        assert everything(model, optimizer) == expected
    state.sync()
    train(model, optimizer)
    state.commit()
    train(model, optimizer)
    state.restore()
    assert everything(model, optimizer) != expected


@CASES.add
def newcomers_have_the_copy_of_rank_0_and_nobody_writes_to_it() -> None:
    model = filled(1.0 + hvd.rank())
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    if hvd.rank() == 0:
        optimizer.step()
    state: Any = hvd.elastic.TorchState(model, optimizer, step=hvd.rank())
    for world in range(3):
        if hvd.rank() == 0:
            state.on_hosts_updated(int(time.time()) + world, ADDED)
            state.step = 10 + world
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()
        if hvd.rank() != 0 and world != 1:  # a survivor once, else a newcomer
            model = filled(9.0)
            state = hvd.elastic.TorchState(model, torch.optim.Adam(model.parameters()), step=0)
        state.sync()
        expected = of_rank_0(contents(model))
        moments = of_rank_0([each["exp_avg"].unique().tolist() for each in state.optimizer.state.values()])
        assert contents(model) == expected
        borrowed = [state._handlers[name]._copies._whole.is_borrowed for name in ("model", "optimizer")]
        assert borrowed == [hvd.rank() != 0 and model.weight.is_cpu] * 2
        # Some go on, commit and drop what they had, while others still have the copy.
        for _ in range(3 * (hvd.rank() % 2 == 0)):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            state.optimizer.step()
            state.save()
        hvd.barrier()
        if hvd.rank() % 2:
            with torch.no_grad():
                model.weight.fill_(8.0)
            state.restore()
            assert (state.step, contents(model)) == (10 + world, expected)
            assert moments == [each["exp_avg"].unique().tolist() for each in state.optimizer.state.values()]


@CASES.add
def two_states_of_a_script_are_synced_in_one_order() -> None:
    one: Any = hvd.elastic.TorchState(network(970 + hvd.rank()), step=hvd.rank())
    other: Any = hvd.elastic.TorchState(critic=network(980 + hvd.rank()), epoch=5 + hvd.rank())
    for _ in range(2):
        one.sync()
        other.sync()
        assert (one.step, other.epoch) == (0, 5)
        assert_same_everywhere([one.model.weight.tolist(), other.critic.weight.tolist()])
        one.commit()
        other.commit()
    if hvd.size() == 1:
        return
    before = other.critic.weight.tolist()
    if hvd.rank() == 0:
        hvd.broadcast_object(
            ("parts", ["model", "optimizer", "step"], {}), name="elastic.state"
        )  # as `one` begins
    else:
        with pytest.raises(HorovodInternalError, match=r"another state.*optimizer, step.*critic") as caught:
            other.sync()
        assert not caught.value.recoverable
    assert other.critic.weight.tolist() == before


# -- the loop -----------------------------------------------------------------------------------------------


@CASES.add
def run_returns_what_the_function_returns() -> None:
    @hvd.elastic.run
    def fit(state: Any, a: int, b: int = 0) -> tuple[int, int, int]:
        return state.step, a, b

    assert fit(hvd.elastic.TorchState(step=5 + hvd.rank()), 1, b=2) == (5, 1, 2)
    assert fit.__name__ == "fit"


@CASES.add
def a_failure_of_one_rank_takes_all_back_to_the_last_commit() -> None:
    model, optimizer = training(900, distributed=True)
    sampler = hvd.elastic.ElasticSampler(range(4 * hvd.size()))
    state: Any = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
    worlds: list[int] = []
    state.register_reset_callbacks([lambda: worlds.append(hvd.size())])
    begins: list[int] = []
    weights: list[Any] = []

    @hvd.elastic.run
    def fit(state: Any) -> str:
        begins.append(state.step)
        weights.append(everything(model, optimizer)[0])
        while state.step < 4:
            train(model, optimizer)
            sampler.record_batch(state.step, 1)
            state.step += 1
            if state.step == 3 and len(begins) == 1 and hvd.rank() == hvd.size() - 1:
                raise HorovodInternalError("injected")
            if state.step == 2:
                state.commit()
                weights.append(everything(model, optimizer)[0])
        return "done"

    assert fit(state) == "done"
    assert worlds == [hvd.size()]
    assert begins == [0, 2]
    assert weights[1] == weights[2]
    assert sampler.processed_num == 4 * hvd.size()
    assert_same_everywhere(everything(model, optimizer))


@CASES.add
def what_a_new_world_cannot_mend_is_not_tried_again() -> None:
    if hvd.size() == 1:
        return
    calls: list[None] = []

    @hvd.elastic.run
    def fit(state: Any) -> None:
        calls.append(None)
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="elastic.x", op=hvd.Sum)

    with pytest.raises(MismatchError) as caught:
        fit(hvd.elastic.TorchState(step=0))
    assert not caught.value.recoverable
    assert len(calls) == 1


@CASES.add
def changed_hosts_keep_live_values_and_sync_only_if_some_were_added() -> None:
    for kind in (REMOVED, ADDED):
        syncs: list[None] = []

        class Recording(hvd.elastic.TorchState):
            def sync(self, syncs: list[None] = syncs) -> None:
                syncs.append(None)
                super().sync()

        state: Any = Recording(step=3)
        begins: list[int] = []

        @hvd.elastic.run
        def fit(state: Any, kind: int = kind, begins: list[int] = begins) -> None:
            begins.append(state.step)
            if len(begins) == 1:
                state.step = 7  # not committed: the check saves it
                if hvd.rank() == 0:
                    notification_manager.handle_hosts_updated(int(time.time()), kind)
                state.check_host_updates()

        fit(state)
        assert begins == [3, 7]
        assert len(syncs) == (1 if kind == REMOVED else 2)
    # The loop has taken its listener away.
    notification_manager.handle_hosts_updated(int(time.time()) + 10, ADDED)
    state.check_host_updates()


@CASES.add
def other_exceptions_end_the_loop() -> None:
    state: Any = hvd.elastic.TorchState(step=0)

    @hvd.elastic.run
    def fit(state: Any) -> None:
        state.step = 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fit(state)
    assert state.step == 1
    notification_manager.handle_hosts_updated(int(time.time()), ADDED)
    state.check_host_updates()

"""The loop around a training function, and who hears of changed hosts; no world is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from horovod.elastic.notification import HostUpdateResult, WorkerNotificationManager, notification_manager
from horovod.elastic.run import run_fn
from horovod.elastic.state import ObjectState, State
from horovod.errors import (
    CollectiveTimeout,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    PeerLostError,
    ProcessSetError,
    RendezvousError,
    ShutdownError,
    VersionError,
    from_core,
)


class Recorder(State):
    """Writes down what is asked of it. ``fails`` are errors for the first calls of ``sync``."""

    def __init__(self, log: list[str], fails: tuple[Exception, ...] = ()) -> None:
        super().__init__(lambda value: value, lambda: 0)
        self.log = log
        self.fails = list(fails)

    def sync(self) -> None:
        self.log.append("sync")
        if self.fails:
            raise self.fails.pop(0)

    def restore(self) -> None:
        self.log.append("restore")

    def save(self) -> None:
        self.log.append("save")

    def reset(self) -> None:
        self.log.append("state.reset")


def run(steps: list[Exception | str], fails: tuple[Exception, ...] = ()) -> tuple[list[str], Any]:
    """What happens in a loop whose function does ``steps``, one for each call."""
    log: list[str] = []
    state = Recorder(log, fails)
    state.register_reset_callbacks([lambda: log.append("callback")])

    def function(state: State) -> str:
        log.append("call")
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    result = None
    try:
        result = run_fn(function, lambda: log.append("reset"))(state)
    except KeyError as error:
        result = error
    return log, result


RESET = ["reset", "state.reset", "callback"]


def test_without_trouble_it_is_one_call() -> None:
    assert run(["done"]) == (["sync", "call"], "done")


def test_a_failure_restores_and_synchronises() -> None:
    log, result = run([PeerLostError("gone", rank=1), "done"])
    assert log == ["sync", "call", "restore", *RESET, "sync", "call"]
    assert result == "done"


def test_a_failure_during_sync_is_one_during_training() -> None:
    log, _ = run(["done"], fails=(HorovodInternalError("a"), HorovodInternalError("b")))
    assert log == ["sync", "restore", *RESET, "sync", "restore", *RESET, "sync", "call"]


def test_changed_hosts_restore_nothing() -> None:
    log, _ = run([HostsUpdatedInterrupt(False), "done"])
    assert log == ["sync", "call", *RESET, "sync", "call"]


def test_removed_hosts_skip_one_sync() -> None:
    log, _ = run([HostsUpdatedInterrupt(True), HostsUpdatedInterrupt(True), HorovodInternalError(), "done"])
    assert log == ["sync", "call", *RESET, "call", *RESET, "call", "restore", *RESET, "sync", "call"]


@pytest.mark.parametrize("in_step", [True, False])
def test_it_is_skipped_only_if_all_members_are_in_step(
    monkeypatch: pytest.MonkeyPatch, in_step: bool
) -> None:
    part = Namespace(in_step=in_step, membership=None, took=dict, mark=lambda phase: None, round=1)
    monkeypatch.setattr("horovod.elastic.run.drained_by_signal", nullcontext)
    here = Namespace(topology=Namespace(rank=1))
    monkeypatch.setattr(
        "horovod.elastic.run.lifecycle",
        Namespace(part=lambda: part, enter=lambda: False, current=lambda: here),
    )
    monkeypatch.setattr("horovod.elastic.run.notification_manager.init", lambda: None)
    log, _ = run([HostsUpdatedInterrupt(True), "done"])
    assert log == ["sync", "call", *RESET, *([] if in_step else ["sync"]), "call"]


def test_other_errors_leave() -> None:
    log, result = run([KeyError("mine")])
    assert log == ["sync", "call"]
    assert isinstance(result, KeyError)


@pytest.mark.parametrize(
    "error",
    [
        MismatchError("differ"),
        HorovodInternalError("CUDA tensors are not supported yet", recoverable=False),
        ProcessSetError("the ranks disagree"),
        VersionError("differ"),
        from_core("unsupported", "nothing here can do that"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_new_world_can_mend_is_not_tried_again(error: HorovodInternalError) -> None:
    log: list[str] = []
    state = Recorder(log)

    def function(state: State) -> None:
        raise error

    with pytest.raises(HorovodInternalError) as caught:
        run_fn(function, lambda: log.append("reset"))(state)
    assert caught.value is error
    assert log == ["sync"]


@pytest.mark.parametrize(
    "error",
    [
        PeerLostError("rank 1 has ended: its script raised ValueError: boom", rank=1),
        ShutdownError("by rank 1", rank=1),
        CollectiveTimeout("late"),
        RendezvousError("nobody"),
        ProcessSetError("Horovod is shutting down", recoverable=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_new_world_can_mend_is_tried_again(error: Exception) -> None:
    assert run([error, "done"]) == (["sync", "call", "restore", *RESET, "sync", "call"], "done")


def test_a_failing_reset_is_not_caught() -> None:
    def fail() -> None:
        raise HorovodInternalError("no world")

    log: list[str] = []
    state = Recorder(log)

    def function(state: State) -> None:
        raise HorovodInternalError

    with pytest.raises(HorovodInternalError, match="no world"):
        run_fn(function, fail)(state)
    assert log == ["sync", "restore"]
    assert_not_listening(state)


def assert_not_listening(state: State) -> None:
    notification_manager.handle_hosts_updated(10**10, HostUpdateResult.added)
    state.check_host_updates()


def test_the_state_listens_as_long_as_the_loop_runs() -> None:
    state = Recorder([])

    def function(state: State) -> None:
        notification_manager.handle_hosts_updated(10**10, HostUpdateResult.added)
        with pytest.raises(HostsUpdatedInterrupt):
            state.check_host_updates()

    run_fn(function, lambda: None)(state)
    assert_not_listening(state)


# -- notifications ------------------------------------------------------------------------------------------


def test_kinds_of_changes_are_flags() -> None:
    kinds = {kind.name: int(kind) for kind in map(HostUpdateResult, range(4))}
    assert kinds == {"no_update": 0, "removed": 1, "added": 2, "mixed": 3}
    assert HostUpdateResult.removed | HostUpdateResult.added == HostUpdateResult.mixed


def test_every_listener_hears_once() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[int, int]] = []

        def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
            self.heard.append((timestamp, update_res))

    manager = WorkerNotificationManager()
    manager.init()
    manager.init(rendezvous_addr="localhost", rendezvous_port=1, nic=None, hostname="a", local_rank=0)
    one, two = Listener(), Listener()
    for listener in (one, one, two):
        manager.register_listener(listener)
    manager.handle_hosts_updated(5, 1)
    manager.remove_listener(two)
    manager.remove_listener(two)
    manager.handle_hosts_updated(6, 2)
    assert one.heard == [(5, 1), (6, 2)]
    assert two.heard == [(5, 1)]


@pytest.mark.parametrize(
    ("messages", "skip_sync"),
    [
        ([(5, 1)], True),
        ([(5, 2)], False),
        ([(5, 3)], False),
        ([(5, 1), (6, 2)], False),
        ([(5, 1), (5, 1)], True),
        ([(3, 2), (5, 1)], True),  # the first is old
        ([(3, 2)], None),
        ([], None),
    ],
)
def test_what_has_arrived_since_the_last_change_counts_as_one(
    messages: list[tuple[int, int]], skip_sync: bool | None
) -> None:
    state = Recorder([])
    state.on_hosts_updated(3, 2)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    for message in messages:
        state.on_hosts_updated(*message)
    if skip_sync is None:
        state.commit()
    else:
        with pytest.raises(HostsUpdatedInterrupt) as interrupt:
            state.commit()
        assert interrupt.value.skip_sync is skip_sync
    state.check_host_updates()
    assert state.log == ["save", "save"]  # the first check has saved, as there was no commit


def test_messages_come_from_other_threads() -> None:
    state = Recorder([])
    threads = [threading.Thread(target=state.on_hosts_updated, args=(9, 1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.check_host_updates()


# -- plain objects ------------------------------------------------------------------------------------------


def test_objects_are_saved_by_reference_and_synchronised_as_saved() -> None:
    sent: list[Any] = []

    def broadcast(value: Any) -> Any:
        sent.append(value)
        return {"epoch": 3, "items": [7]}

    state: Any = ObjectState(broadcast, lambda: 0, epoch=1, items=[])
    state.items.append(1)
    state.epoch = 2
    state.restore()
    assert (state.epoch, state.items) == (1, [1])
    state.epoch = 2
    state.sync()
    assert sent == [{"epoch": 1, "items": [1]}]
    assert (state.epoch, state.items) == (3, [7])
    state.epoch = 9
    state.restore()
    assert state.epoch == 3


def test_base_says_nothing_about_how_to_save() -> None:
    state = State(lambda value: value, lambda: 0)
    methods: list[Callable[[], None]] = [state.save, state.restore, state.sync]
    for method in methods:
        with pytest.raises(NotImplementedError):
            method()
    state.reset()


def test_broadcasts_of_one_name_are_told_apart() -> None:
    """One rank checks the hosts while rank 0 broadcasts its state, and the other way round."""
    state = ObjectState(lambda value: {"a": 1, "b": 2, "c": 3}, lambda: 1, a=0, b=0, c=0)
    with pytest.raises(HorovodInternalError, match="met another broadcast of rank 0") as caught:
        state.check_host_updates()
    assert not caught.value.recoverable
    state = ObjectState(lambda value: ("hosts", 0, 0, 0), lambda: 1, a=0)
    with pytest.raises(HorovodInternalError, match="met another broadcast of rank 0"):
        state.sync()
    assert state.a == 0

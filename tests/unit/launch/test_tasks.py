"""Tasks of another system: where ranks are placed, and what is believed of what tasks say."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.errors import LaunchError
from horovod.launch.calls.pickles import why_unpicklable
from horovod.launch.launchers.spark import elastic_name, place_tasks
from horovod.launch.tasks.links import BadMessage, Left, Tasks
from horovod.launch.tasks.messages import Arrival, bytes_of, text_of

KEY = bytes(range(32))
LIMIT_S = 20.0
ARRIVAL = Arrival("t7", 0, 0, "node1", "m1", "executor 0", (), "/", "/usr/bin/python3")


def arrival(index: int, machine: str, host: str = "", gpus: tuple[str, ...] = ()) -> Arrival:
    return dataclasses.replace(
        ARRIVAL, task=f"t{index}", index=index, machine=machine, host=host or f"node-{machine}", gpus=gpus
    )


def test_ranks_go_host_by_host_though_tasks_were_dealt_in_turns() -> None:
    placed = place_tasks([arrival(3, "b"), arrival(0, "a"), arrival(2, "a"), arrival(1, "b")])
    assert [task.index for task in placed.tasks] == [0, 2, 1, 3]
    assert [(slot.hostname, slot.rank, slot.local_rank, slot.cross_rank) for slot in placed.slots] == [
        ("node-a", 0, 0, 0),
        ("node-a", 1, 1, 0),
        ("node-b", 2, 0, 1),
        ("node-b", 3, 1, 1),
    ]
    assert {slot.local_size for slot in placed.slots} == {slot.cross_size for slot in placed.slots} == {2}


def test_containers_of_one_name_are_hosts_of_their_own() -> None:
    placed = place_tasks([arrival(0, "a", "node"), arrival(1, "b", "node"), arrival(2, "a", "node")])
    assert [slot.hostname for slot in placed.slots] == ["node", "node", "node.2"]
    assert [task.index for task in placed.tasks] == [0, 2, 1]


def test_devices_of_a_host_are_in_the_order_of_its_ranks() -> None:
    placed = place_tasks(
        [arrival(0, "a", gpus=("3",)), arrival(1, "b", gpus=("0",)), arrival(2, "a", gpus=("1",))]
    )
    assert placed.gpus == {"node-a": ("3", "1"), "node-b": ("0",)}


def test_each_attempt_of_a_task_is_another_host_of_an_elastic_job() -> None:
    assert elastic_name(ARRIVAL) == "node1.task0"
    assert elastic_name(dataclasses.replace(ARRIVAL, index=3, attempt=2)) == "node1.task3.2"


@pytest.mark.parametrize(
    "change",
    [
        {"task": "t8"},
        {"index": -1},
        {"index": True},
        {"attempt": "0"},
        {"host": "-oProxyCommand=x"},
        {"host": 3},
        {"gpus": "0"},
        {"gpus": [1]},
        {"gpus": ["0,1"]},
        {"gpus": [str(number) for number in range(5000)]},
        {"directory": "a\0b"},
        {"python": "x" * 10_000},
        {"machine": None},
    ],
)
def test_nonsense_of_a_task_is_refused(change: dict[str, Any]) -> None:
    said = {**ARRIVAL.said(), "gpus": [], **change}
    with pytest.raises(LaunchError, match="makes no sense"):
        Arrival.understood("t7", said)
    said.pop("host")
    with pytest.raises(LaunchError, match="makes no sense"):
        Arrival.understood("t7", said)


def test_bytes_through_the_store() -> None:
    assert bytes_of(text_of(b"\0\xff\n")) == b"\0\xff\n"
    with pytest.raises(ValueError):
        bytes_of("no base64!")


@contextmanager
def served() -> Iterator[tuple[Tasks, StoreClient]]:
    """The launcher's side, and a client that plays a task."""
    with StoreServer(KEY, unix.fresh_name(), job="j") as store:
        tasks = Tasks(store, KEY)
        try:
            with StoreClient(store.address, KEY, LIMIT_S, "a task", job="j") as client:
                yield tasks, client
        finally:
            tasks.close()


def news_of(tasks: Tasks) -> Any:
    """The next one."""
    found = tasks.news.take()
    while not found:
        tasks.news.wait(int(LIMIT_S * 1000))
        found = tasks.news.take()
    assert len(found) == 1
    return found[0]


def come(client: StoreClient) -> None:
    client.watch("task/t7/", -1)
    client.set("arrived/t7", {**ARRIVAL.said(), "gpus": []})


def test_a_link_carries_bytes_both_ways_and_the_status() -> None:
    with served() as (tasks, client):
        come(client)
        assert news_of(tasks) == ARRIVAL
        link = tasks.link(ARRIVAL, "the task is gone")
        assert client.get("task/t7/down/0/", LIMIT_S) == {"begin": True}
        assert link.stdin is not None
        assert link.stdout is not None
        assert link.stderr is not None
        link.stdin.write(b"a request\n")
        assert client.get("task/t7/down/1/", LIMIT_S) == {"data": text_of(b"a request\n")}
        large = os.urandom(1 << 20)  # more than a pipe holds
        for number in range(16):
            part = large[number << 16 : (number + 1) << 16]
            client.set(f"task/t7/up/{number}/", {"data": text_of(part)})
        client.set("task/t7/up/16/", {"ended": 3})
        read = b""
        while piece := link.stdout.read(1 << 16):
            read += piece
        assert read == large
        assert link.wait(LIMIT_S) == 3
        assert link.why == ""
        assert client.collect("task/t7/up/", 0, 0.0) == {}, "what was read is forgotten"
        for pipe in (link.stdin, link.stdout, link.stderr):
            pipe.close()
        tasks.dismiss("t7", "it has failed")
        assert client.get("task/t7/down/2/", LIMIT_S) == {"over": "it has failed"}


def test_a_task_that_goes_away_ends_its_link_with_a_reason() -> None:
    with served() as (tasks, client):
        come(client)
        assert news_of(tasks) == ARRIVAL
        link = tasks.link(ARRIVAL, "the task is gone")
        assert client.get("task/t7/down/0/", LIMIT_S) == {"begin": True}
        with pytest.raises(subprocess.TimeoutExpired):
            link.wait(0.01)
        client.close()
        assert news_of(tasks) == Left("t7")
        assert link.wait(LIMIT_S) == 1
        assert link.why == "the task is gone"
        assert link.stdout is not None
        assert link.stdout.read() == b""
        late = tasks.link(ARRIVAL, "the task is gone")
        assert late.wait(LIMIT_S) == 1
        for each in (link, late):
            for pipe in (each.stdin, each.stdout, each.stderr):
                assert pipe is not None
                pipe.close()


def test_who_comes_late_is_dismissed_as_well() -> None:
    with served() as (tasks, client):
        tasks.dismiss_all()
        come(client)
        assert client.get("task/t7/down/0/", LIMIT_S) == {"over": ""}


@pytest.mark.parametrize("word", [{"data": "no base64!"}, {"ended": "well"}, ["data"], None])
def test_nonsense_from_a_task_is_told(word: Any) -> None:
    with served() as (tasks, client):
        come(client)
        assert news_of(tasks) == ARRIVAL
        link = tasks.link(ARRIVAL, "the task is gone")
        client.get("task/t7/down/0/", LIMIT_S)
        client.set("task/t7/up/0/", word)
        assert isinstance(news_of(tasks), BadMessage)
        link.kill()
        assert link.wait(LIMIT_S) == -9
        for pipe in (link.stdin, link.stdout, link.stderr):
            assert pipe is not None
            pipe.close()


def test_what_cannot_be_pickled_is_found_in_classes_and_methods() -> None:
    class Model:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def train(self) -> None:
            pass

    said = why_unpicklable(Model().train, (), {}, TypeError("no"))
    assert said.startswith("attribute 'lock' of the object of the function cannot be pickled")
    assert "it is _thread.lock. TypeError: no" in said

"""What an agent is asked for: a request, or a refusal with a reason; and no request leaves it deaf."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from typing import Any

import pytest
from fuzz.values import ANYTHING, DEEP, changed, kept
from hypothesis import given
from hypothesis import strategies as st

from horovod.launch.agent.requests import (
    Beat,
    Call,
    Close,
    EndRanks,
    Intake,
    KillRanks,
    Plan,
    PlannedRank,
    Refusal,
    StartRanks,
    Taken,
    understood,
)
from horovod.launch.agent.terms import MOST_SILENCE_S, MOST_WINDOW_BYTES

WORKER = {"rank": 0, "environment": {"A": "b"}}
AWAY = {
    "command": ["echo", "\xe9"],
    "environment": {"PATH": "/bin"},
    "workers": [WORKER, {**WORKER, "rank": 1}],
    "nofile": 0,
    "defaults": {"HOME": "/"},
    "directory": "/",
    "silence_s": 5.0,
    "window": 1 << 20,
}
HERE = {
    "command": ["echo"],
    "environment": {},
    "workers": [{**WORKER, "stdout": 5, "stderr": 6, "result": 7}],
    "nofile": 1024,
    "call": 4,
}
REQUESTS: list[dict[str, Any]] = [
    AWAY,
    HERE,
    {**AWAY, "workers": [], "open": True, "inherit": False},
    {"start": [WORKER, {**WORKER, "rank": 1}]},
    {"end": 15, "workers": [0, 1]},
    {"close": True},
    {"end": 15},
    {"kill": True},
    {"taken": 9},
    {"beat": True},
    {"call": 3},
]
MEMORY_BYTES = 1 << 20
CALL_BYTES = 200

KEPT = kept("requests")
lines = st.one_of(
    st.sampled_from(KEPT),
    st.sampled_from(REQUESTS).flatmap(changed).map(lambda request: json.dumps(request).encode()),
    ANYTHING.map(lambda value: json.dumps(value).encode()),
    DEEP.map(str.encode),
    st.integers(4000, 5000).map(lambda digits: b'{"end":' + b"9" * digits + b"}"),
    st.binary(max_size=60),
)


@pytest.mark.once
@pytest.mark.parametrize("remote", [False, True])
def test_lines_that_are_kept(remote: bool) -> None:
    for line in KEPT:
        check_line(line, remote)


@given(line=lines, remote=st.booleans())
def test_a_line_is_a_request_or_refused(line: bytes, remote: bool) -> None:
    check_line(line, remote)


def check_line(line: bytes, remote: bool) -> None:
    why = ""
    try:
        request = understood(line, remote)
    except Refusal as refusal:
        why = str(refusal)
    if why:
        assert len(why) < 300
        return
    match request:
        case Plan():
            check_plan(request, remote)
        case Call(size_bytes=size_bytes):
            assert remote
            assert 0 < size_bytes < 1 << 63
        case EndRanks(signum=signum, ranks=ranks):
            assert 0 < signum <= 64
            assert ranks is None or remote
            assert all(0 <= rank < 1 << 31 for rank in ranks or [])
        case StartRanks(workers=workers):
            assert remote
            check_workers(workers)
        case Taken(size_bytes=size_bytes):
            assert 0 < size_bytes <= MOST_WINDOW_BYTES
        case _:
            assert isinstance(request, (KillRanks, Beat)) or (remote and isinstance(request, Close))


def check_plan(plan: Plan, remote: bool) -> None:
    """It says nothing that the system's calls do not take."""
    assert plan.command[0]
    assert plan.workers or plan.open
    assert remote or plan.inherit
    assert remote or not plan.open
    ranks = check_workers(plan.workers)
    for environment in (plan.environment, plan.defaults):
        check_environment(environment)
    streams = [descriptor for worker in plan.workers for descriptor in worker.streams.values()]
    assert all(descriptor > 2 for descriptor in streams)
    assert len(streams) == (0 if remote else len(ranks) * (3 if plan.call >= 0 else 2))
    if remote:
        assert 0.0 < plan.silence_s <= MOST_SILENCE_S
        assert plan.window > 0


def check_workers(workers: list[PlannedRank]) -> list[int]:
    ranks = [worker.rank for worker in workers]
    assert sorted(set(ranks)) == sorted(ranks)
    for worker in workers:
        check_environment(worker.environment)
    return ranks


def check_environment(environment: dict[bytes, bytes]) -> None:
    for name, value in environment.items():
        assert name
        assert b"=" not in name
        assert b"\0" not in name + value


@given(
    before=st.lists(lines, max_size=3),
    cuts=st.lists(st.integers(0, 1 << 12), max_size=4),
    size_bytes=st.integers(-3, 2 * CALL_BYTES),
)
def test_what_comes_after_anything_is_heard_or_was_refused(
    before: list[bytes], cuts: list[int], size_bytes: int
) -> None:
    """A call of some size among lines that may be anything, in pieces; then the signal to end."""
    call = json.dumps({"call": size_bytes}).encode() + b"\n" + b"\xff" * max(0, size_bytes)
    said = [line for line in before if b"\n" not in line and b"call" not in line]
    stream = b"".join(line + b"\n" for line in said) + call + b'{"end": 15}\n'
    intake = Intake(True, MEMORY_BYTES)
    heard: list[Any] = []
    try:
        edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
        with contextlib.suppress(Refusal):
            for begin, end in itertools.pairwise(edges):
                intake.feed(stream[begin:end])
                heard += intake.requests()
            assert isinstance(heard[-1], EndRanks)
            assert os.pread(intake.call, CALL_BYTES * 3, 0) == b"\xff" * size_bytes
            return
        assert intake.requests() == []  # nothing that follows counts
        intake.feed(b'{"kill": true}\n')
        assert intake.requests() == []
    finally:
        if intake.call >= 0:
            os.close(intake.call)

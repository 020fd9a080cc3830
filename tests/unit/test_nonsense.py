"""Nonsense that other processes may say, each of which did harm once; fuzzers look for more (``fuzz/``)."""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
from typing import Any

import pytest

from horovod.bootstrap.place import pmi
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.meeting import _decode
from horovod.bootstrap.store.messages import MAX_FRAME_BYTES, FrameError
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Table
from horovod.errors import HorovodInternalError, LaunchError, RendezvousError
from horovod.launch.agent.terms import MARK
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.messages import to_event
from horovod.launch.agent_client.speech import Lost

KEY = bytes(range(32))


def said(table: Table) -> list[tuple[int, dict[str, Any]]]:
    replies, table.replies = table.replies, []
    return [(who, json.loads(b"".join(frame)[4:])) for who, frame in replies]


def test_a_wait_that_no_clock_can_measure_does_not_end_the_store() -> None:
    with StoreServer(KEY) as server:
        impatient = StoreClient(server.address, KEY, 5.0, "rank 1")
        impatient._socket.sendall(
            impatient._signer.signed(
                b"\0\0\0\x32" + b'{"id":1,"op":"get","key":"k","timeout_s":1e300}'.ljust(50)
            )
        )
        with StoreClient(server.address, KEY, 5.0, "rank 0") as client:
            client.set("a", 1)
            assert client.get("a", 1.0) == 1
        impatient.close()


def test_a_name_that_is_too_long_to_repeat_does_not_end_the_store() -> None:
    table = Table()
    who = "é" * (MAX_FRAME_BYTES // 4)
    table.request(1, {"id": 1, "op": "watch", "scope": "a/", "who": who, "rank": 1, "host": "a"})
    table.request(2, {"id": 1, "op": "get", "key": "a/x", "timeout_s": 9.0})
    table.leave(1)
    assert [(who, answer.get("error")) for who, answer in said(table)] == [(1, None), (2, "aborted")]


def test_a_rank_that_is_none_is_refused() -> None:
    for rank in (1e308, 1 << 40, "1", True):
        with pytest.raises(FrameError):
            Table().request(1, {"id": 1, "op": "watch", "scope": "a/", "who": "x", "rank": rank, "host": "a"})


@pytest.mark.parametrize(
    "change", [{"waited_s": float("nan")}, {"waited_s": True}, {"missing": 3}, {"rank": "1"}, {"text": None}]
)
def test_a_cause_with_a_part_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    cause = {"text": "x", "missing": [1], "waited_s": 1.0, "rank": 1, "host": "a"}
    Table().request(1, {"id": 1, "op": "abort", "scope": "a/", "cause": cause})
    with pytest.raises(FrameError):
        Table().request(1, {"id": 1, "op": "abort", "scope": "a/", "cause": {**cause, **change}})
    cause.pop("host")
    with pytest.raises(FrameError):
        Table().request(1, {"id": 1, "op": "abort", "scope": "a/", "cause": cause})


def test_who_brings_about_an_answer_that_is_too_long_is_not_to_blame() -> None:
    table = Table()
    table.request(1, {"id": 1, "op": "collect", "prefix": "a/", "count": 2, "timeout_s": 9.0})
    half = "x" * (MAX_FRAME_BYTES * 5 // 8)
    for number in range(2):
        table.request(2, {"id": number, "op": "set", "key": f"a/{number}", "value": half})
    answers = said(table)
    assert sorted((who, answer.get("error", "")) for who, answer in answers) == [
        (1, "full"),
        (2, ""),
        (2, ""),
    ]


def test_what_somebody_asked_for_once_is_not_kept_for_ever() -> None:
    table = Table()
    for number in range(1000):
        table.request(1, {"id": 1, "op": "collect", "prefix": f"p{number}/", "count": 0, "timeout_s": 1.0})
    assert len(table._collections) <= 64


@pytest.mark.parametrize(
    "content",
    [
        {"at": [["127.0.0.1", 99999]], "job": "j", "check": "c"},
        {"at": [["a\0b", 1]], "job": "j", "check": "c"},
        {"at": [["127.0.0.1"]], "job": "j", "check": "c"},
        {"at": 3, "job": "j", "check": "c"},
        {"at": [["127.0.0.1", 1]], "job": "j", "check": "é"},
        {"at": [], "job": "j", "check": "c"},
    ],
)
def test_a_card_of_another_shape_is_nonsense(content: dict[str, Any]) -> None:
    text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
    with pytest.raises(RendezvousError, match="through file makes no sense"):
        _decode(text, "file")


def test_a_card_that_is_nested_too_deep_is_nonsense() -> None:
    with pytest.raises(RendezvousError, match="makes no sense"):
        _decode(base64.urlsafe_b64encode(b"[" * 100_000).decode(), "pmi")


@pytest.mark.parametrize("answers", [b"cmd=my_kvsname rc=0\n", b"x" * 100_000])
def test_a_process_manager_that_leaves_out_a_word_or_never_ends_a_line(answers: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"cmd=response_to_init rc=0\n" + answers)
        with pytest.raises(RendezvousError, match="PMI"):
            pmi.exchange({"PMI_FD": str(ours.fileno())}, "", 5.0)


def test_numbers_that_the_system_does_not_know_are_no_events() -> None:
    messages: list[dict[str, Any]] = [
        {"event": "refused", "rank": 0, "errno": 10**30},
        {"event": "exited", "rank": 0, "exit_code": -(10**9)},
        {"event": "finished", "survivors": [{}]},
        {"event": "started", "rank": True, "pid": 1},
        {"event": "left_behind", "processes": 1, "rank": "0"},
        {"event": "exited", "rank": 0, "exit_code": 1, "told": 1},
        {"event": "gone", "rank": 0},
        {"event": ["finished"], "survivors": []},
        {"survivors": []},
    ]
    for message in messages:
        with pytest.raises(LaunchError, match="unknown"):
            to_event(message)


def test_a_client_says_that_the_store_talks_nonsense() -> None:
    with StoreServer(KEY) as server, StoreClient(server.address, KEY, 5.0, "rank 0") as client:
        for answer in ({"id": 1}, {"id": 1, "error": "timeout", "present": 3}, {"id": 1, "ok": [1]}):
            with pytest.raises(HorovodInternalError, match="sent nonsense"):
                client._understood("compare_and_set", answer, {"key": "a"} if "ok" in answer else {})


def test_a_host_that_talks_nonsense_is_lost_and_no_other() -> None:
    nonsense = [
        b"[" * 100_000,
        b'{"event":"hello"}',
        b'{"event":"no_directory","errno":1e400}',
        b"\xff",
        b"null",
    ]
    program = "import sys; sys.stdout.buffer.write({!r}); sys.stdout.flush(); sys.stdin.read()"
    commands = {
        str(number): [sys.executable, "-S", "-c", program.format(MARK + each + b"\n")]
        for number, each in enumerate(nonsense)
    }
    good = MARK + b'{"event":"beat"}\n'
    commands["good"] = [sys.executable, "-S", "-c", program.format(good)]
    connections = Connections(b"", 30.0)
    try:
        for name, command in commands.items():
            connections.reach(name, command)
        lost: dict[str, str] = {}
        deadline = time.monotonic() + 20.0
        # The good one may be the last that gets a core and speaks.
        while len(lost) < len(nonsense) or "good" not in connections.silent_s():
            assert time.monotonic() < deadline, lost
            lost.update((name, news.reason) for name, news in connections.news() if isinstance(news, Lost))
            time.sleep(0.01)
        assert set(lost) == {str(number) for number in range(len(nonsense))}
        assert all("not understood" in reason for reason in lost.values())
        assert "good" in connections.silent_s()
    finally:
        connections.close(0.0)

"""What a host of the job may do to the launcher when it says what it likes in place of its agent."""

from __future__ import annotations

import json
import os
import pty
import select
import struct
import sys
import time
import tracemalloc
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.launch.launching import horovodrun
from tests.launch.test_connections import fake_ssh

from horovod.errors import ConfigError, LaunchError, WorkerFailed
from horovod.launch.agent.terms import MARK
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.speech import Greeting, Lost
from horovod.launch.calls.functions import explain_failure, result_of
from horovod.launch.calls.pickles import pack
from horovod.launch.calls.plain import pack_plain, unpack_error, unpack_plain
from horovod.launch.contracts.events import Event, Exited, Finished, HostLost, Refused, Started
from horovod.launch.contracts.fleet import Request
from horovod.launch.external.messages import RankEnd, understood
from horovod.launch.launchers.closed_fleet import ClosedAgentFleet
from horovod.launch.output import streams as output_module
from horovod.launch.output.console import Console
from horovod.launch.output.streams import RESULT, Output
from horovod.launch.placement.addresses import store_hosts
from horovod.launch.rank_wrapper import rank_and_size

LIMIT_S = 20.0
HELLO = {"event": "hello", "host": "b", "machine": "m", "cores": 2, "python": "p", "connection": ""}


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


@contextmanager
def host(*said: bytes, window_bytes: int = 100) -> Iterator[Connections]:
    """One that runs rank 1, and says this once it is greeted."""
    program = (
        f"import sys; out = sys.stdout.buffer; out.write({MARK + line(HELLO)!r}); out.flush(); "
        "sys.stdin.readline(); "
        f"[(out.write(each), out.flush()) for each in {said!r}]; sys.stdin.read()"
    )
    connections = Connections(b"", 30.0)
    try:
        connections.reach("b", [sys.executable, "-S", "-c", program])
        assert isinstance(first_news(connections), Greeting)
        connections.deliver_to(lambda *_: None)
        connections.expect("b", [1], window_bytes)
        connections.request("b", b"go\n")
        yield connections
    finally:
        connections.close(0.0)


def first_news(connections: Connections) -> Any:
    assert select.select([connections], [], [], LIMIT_S)[0]
    return connections.news()[0][1]


def why_lost(connections: Connections) -> str:
    """The reason that ends the host; what it did before is left out."""
    while True:
        assert select.select([connections], [], [], LIMIT_S)[0]
        for _, news in connections.news():
            if isinstance(news, Lost):
                return news.reason


OUTPUT = {"event": "output", "rank": 1, "stream": "stdout", "size": 60}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([line({"event": "exited", "rank": 0, "exit_code": 1})], "a rank that is not there"),
        ([line({"event": "started", "rank": 10**30, "pid": 1})], "rank is no number"),
        ([line({"event": "said", "rank": 2, "line": "{}"})], "a rank that is not there"),
        ([line({**OUTPUT, "rank": 0})], "a rank that is not there"),
        ([line(OUTPUT) + b"x" * 60, line(OUTPUT) + b"x" * 60], "more output than it may"),
        ([line({"event": "gone", "rank": 0, "survivors": []})], "a rank that is not there"),
        ([line({"event": "gone", "rank": 1, "survivors": []}) + line(OUTPUT)], "a rank that is not there"),
        ([line({"event": "gone", "rank": 1, "survivors": ["1"]})], "something unknown"),
        ([line({"event": "left_behind", "rank": 0, "processes": 1})], "a rank that is not there"),
        ([line({"event": "left_behind", "processes": 1}) * 1500], "does not stop talking"),
        ([line({"event": "cannot", "why": "\x1b]0;no\x07"})], r"asked for: \x1b]0;no\x07"),
    ],
)
def test_a_host_speaks_for_its_own_ranks_and_not_for_ever(said: list[bytes], why: str) -> None:
    with host(*said) as connections:
        assert why in why_lost(connections)


def test_a_host_has_no_say_after_its_last_word() -> None:
    said = line({"event": "finished", "survivors": []}) + line({"event": "exited", "rank": 0, "exit_code": 1})
    with host(said) as connections:
        assert isinstance(first_news(connections), Finished)
        connections.close(LIMIT_S)  # waits until it has said all
        assert connections.news() == []


class News:
    """In place of connections to one host."""

    def __init__(self, *events: Event) -> None:
        self._events = events
        self._bell = os.eventfd(1)

    def fileno(self) -> int:
        return self._bell

    def news(self) -> list[tuple[str, Event]]:
        return [("b", event) for event in self._events]

    def close(self, _: float) -> None:
        os.close(self._bell)


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([Exited(0, 0), Finished(())], [(1,)]),
        ([Finished(())], [(0, 1)]),
        ([Exited(0, 0), Exited(1, 0), Finished(())], []),
        ([Started(0, 11), Refused(1, 2), Exited(0, -15), Finished(())], []),
        ([Exited(0, -9), Finished((12,))], []),
    ],
)
def test_a_host_that_keeps_the_ends_of_its_ranks_to_itself_is_lost(
    events: list[Event], lost: list[tuple[int, ...]]
) -> None:
    console = Console()
    request = cast("Request", SimpleNamespace(console=console))
    connections = cast("Connections", News(*events))
    fleet = ClosedAgentFleet(request, Output(2, console), connections)  # type: ignore[abstract]
    try:
        fleet.watch("b", {0, 1})
        found = fleet.events()
    finally:
        fleet.close()
    assert [event.ranks for event in found if isinstance(event, HostLost)] == lost
    assert isinstance(found[-1], Finished)


def test_what_wrappers_bring_home_is_kept_within_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "most_result_bytes", lambda: 1000)
    output = Output(2, Console())
    output.keep(0, ["the last line"], bytearray(600))
    with pytest.raises(LaunchError, match="half of this machine's memory"):
        output.keep(1, [], bytearray(401))
    output.start()
    output.drain(lambda: False)
    assert output.results() == {0: bytearray(600)}
    assert (output.tail(0), output.tail(1)) == (("the last line",), ())


def test_results_that_do_not_fit_into_this_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "most_result_bytes", lambda: 1000)
    output = Output(2, Console())
    for rank in range(2):
        output.expect(rank, RESULT)
    output.start()
    output.put(0, RESULT, b"x" * 600, lambda _: None)
    output.put(1, RESULT, b"x" * 400, lambda _: None)
    with pytest.raises(LaunchError, match="half of this machine's memory"):
        output.put(1, RESULT, b"x", lambda _: None)
    output.drain(lambda: False)
    assert {rank: len(data) for rank, data in output.results().items()} == {0: 600, 1: 400}


@pytest.mark.parametrize("seen", ["0.0.0.0", "::", "224.0.0.1", "localhost", "a" * 300, "\0", "127.0.0.1 x"])
def test_no_host_makes_the_store_listen_everywhere(seen: str) -> None:
    assert seen not in store_hosts((), [seen, "127.0.0.1"])


def framed(text: str, buffers: bytes = b"") -> bytearray:
    data = text.encode()
    return bytearray(b"faran\x00\x05\x02" + struct.pack("<Q", len(data)) + data + buffers)


@pytest.mark.parametrize(
    "text",
    [
        '{"float": "0x1p99999"}',
        '{"array": ["<f8", [1e400], [0, 8]]}',
        '{"array": ["<f8", [' + "9" * 100 + "], [0, 8]]}",
        '{"array": ["(2,3)f8", [1], [0, 48]]}',
        '{"array": ["<M8[99999999999999999999s]", [1], [0, 8]]}',
        '{"bytes": [1e400, 3]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_value_is_nonsense(text: str) -> None:
    with pytest.raises(LaunchError, match="makes no sense"):
        unpack_plain(memoryview(framed(text, bytes(48))))


def test_a_few_bytes_do_not_become_many() -> None:
    text = '{"list": [' + ", ".join(['{"bytes": [0, 1048576]}'] * 200) + "]}"
    data = framed(text, bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(LaunchError, match="makes no sense"):
        unpack_plain(memoryview(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("UnicodeDecodeError", ("utf-8", b"x", 10**30, 1, "y")),
        ("ExceptionGroup", ("several", [])),
        ("module.Error", (1 << 100_000,)),
        ("ValueError", ("\x1b]52;c;Zm9v\x07",)),
    ],
)
def test_an_exception_of_another_host_can_be_shown(name: str, arguments: tuple[Any, ...]) -> None:
    assert "\x1b" not in str(unpack_error(name, arguments))


@pytest.mark.parametrize("value", [(False, ("ValueError",)), (False, 3), (False, ("E", (), 1, b"")), 5])
def test_what_is_no_exception_is_told_as_that(value: object) -> None:
    failure = WorkerFailed("rank 1 failed", rank=1)
    with pytest.raises(LaunchError, match="is no"):
        explain_failure(failure, bytearray(b"".join(pack_plain(value))), trusted=False)


def test_the_traceback_of_another_host_is_text() -> None:
    failure = WorkerFailed("rank 1 failed", rank=1)
    said = (False, ("ValueError", ("x",), "Traceback\n\x1b[2J\x1b]0;title\x07end\n", b""))
    explain_failure(failure, bytearray(b"".join(pack_plain(said))), trusted=False)
    said_first, _, rest = str(failure).partition("\n")
    assert said_first.startswith("rank 1 failed")
    assert rest == "Traceback\n\\x1b[2J\\x1b]0;title\\x07end"


def test_many_small_values_are_packed_in_no_time() -> None:
    began = time.monotonic()
    value = [b"x"] * 30_000
    assert result_of(bytearray(b"".join(pack_plain((True, value)))), 0, trusted=False) == value
    assert time.monotonic() - began < 5.0


def test_a_result_that_cannot_be_made_again_here_is_told_with_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("only_there")
    exec("class Strange: pass", module.__dict__)
    module.Strange.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    data = bytearray(b"".join(pack((True, module.Strange()))))
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(
        LaunchError, match="result of rank 3 cannot be read here: ModuleNotFoundError"
    ) as told:
        result_of(data, 3, trusted=True)
    assert isinstance(told.value.__cause__, ModuleNotFoundError)


def test_a_report_that_is_none_is_told_as_that() -> None:
    for value in (None, {}, {"exit_code": "1"}, {"exit_code": 1, "tail": 3}, {"exit_code": True}):
        with pytest.raises(LaunchError, match="What rank 1 told through the store makes no sense"):
            understood(RankEnd, value, "rank 1")


def test_a_number_of_a_rank_that_is_none_is_told() -> None:
    for rank, size in (("x", "2"), ("9" * 5000, "2"), ("2", "2"), ("0", "-1")):
        with pytest.raises(ConfigError, match="OMPI_COMM_WORLD_"):
            rank_and_size("mpirun", {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size})


def test_what_a_host_calls_itself_reaches_a_terminal_as_text() -> None:
    ours, theirs = pty.openpty()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    try:
        console = Console(verbose=True)
        console.narrate("host \x1b]0;title\x07b\ud800")
        console.tell("\x1b[2Jhost \udc9b")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(theirs)
    seen = os.read(ours, 4096)
    os.close(ours)
    assert b"\x1b" not in seen
    assert b"\x07" not in seen
    assert b"host b\\ud800" in seen


def test_what_ssh_prints_is_quoted_as_text_in_a_file_too(tmp_path: Path) -> None:
    extra = "printf 'go\\033]0;title\\007away \\233 \\000 now\\n' >&2; exit 255"
    done = horovodrun("-np", "1", "-H", "no-such-host-0:1", "true", extra=fake_ssh(tmp_path, extra))
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr
    assert b"\\x1b]0;title\\x07away" in done.stderr


def test_what_a_shell_prints_before_an_agent_may_be_endless(tmp_path: Path) -> None:
    """Banners, garbage, and lines without an end; then the agent, in pieces."""
    noise = 'import os; [os.write(1, os.urandom(9999) + b"\\n\\xff") for _ in range(300)]'
    extra = f"{sys.executable} -S -c '{noise}'"
    done = horovodrun("-np", "1", "-H", "no-such-host-0:1", "echo", "up", extra=fake_ssh(tmp_path, extra))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"[0]<stdout>:up\n"

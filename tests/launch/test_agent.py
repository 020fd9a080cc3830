"""An agent that is asked for nonsense ends what it has started, and says why. It is a program of its own."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.launch.launching import Watched

from horovod.bootstrap.place import cores
from horovod.bootstrap.place.proc import stat_of
from horovod.launch.agent import bundle, host
from horovod.launch.agent.terms import MARK, MOST_LINE_BYTES

LIMIT_S = 20.0
TEXT = bundle.text()
LOAD = f"import sys;exec(compile(sys.stdin.buffer.read({len(TEXT)}),'agent','exec'))"
PLAN: dict[str, Any] = {
    "command": ["sleep", "60"],
    "environment": {},
    "defaults": {},
    "workers": [{"rank": 0, "environment": {}}],
    "nofile": 0,
    "directory": "/",
    "silence_s": 30.0,
    "window": 1 << 20,
}


OPEN = {**PLAN, "open": True, "workers": []}


class Agent:
    """One for ranks of another host, as ssh would start it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._unread = b""
        self._until = time.monotonic() + LIMIT_S
        self.say(TEXT)
        while MARK not in self._unread:
            self._read()
        self._unread = self._unread.partition(MARK)[2]
        assert self.hear("hello")["event"] == "hello"

    def say(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has heard enough

    def hear(self, *wanted: str) -> dict[str, Any]:
        """The next event of those that are wanted; others are left out."""
        while True:
            line, end, rest = self._unread.partition(b"\n")
            if not end:
                self._read()
                continue
            self._unread = rest
            event: dict[str, Any] = json.loads(line)
            if event["event"] in wanted:
                return event

    def rest(self) -> list[str]:
        """What kinds of events come until the agent has ended."""
        assert self.process.stdout is not None
        lines = (self._unread + self.process.stdout.read()).splitlines()
        return [event for each in lines if (event := json.loads(each)["event"]) != "beat"]

    def end(self) -> tuple[int, bytes]:
        """Its status, and what it has written to standard error."""
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said

    def _read(self) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], max(0.0, self._until - time.monotonic()))[0]
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        assert data, "the agent has ended"
        self._unread += data


@contextmanager
def agent(**variables: str) -> Iterator[Agent]:
    """One whose host has these variables."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LOAD, "remote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **variables},
    ) as process:
        try:
            yield Agent(process)
        finally:
            process.kill()


def line(request: object) -> bytes:
    return json.dumps(request).encode() + b"\n"


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (b'{"call": -1}\n', "call is no number"),
        (b'{"call": 1e3}\n', "call is no number"),
        (line({"call": 1 << 60}), "this host has"),
        (b"what?\n", "no JSON"),
        (b"[" * 100_000 + b"\n", "no JSON"),
        (b"\xff\xfe\n", "no JSON"),
        (b"null\n", "no request"),
        (b"x" * (MOST_LINE_BYTES + 1), "a line without an end"),
        (line({**PLAN, "workers": 3}), "workers is no list"),
        (line({**PLAN, "environment": {"A\0": ""}}), "no text of bytes"),
        (line({**PLAN, "silence_s": float("nan")}), "silence_s is no number of seconds"),
        (line({**PLAN, "workers": []}), "no ranks"),
        (line({**PLAN, "open": 1}), "open is neither true nor false"),
        (line({**PLAN, "inherit": None}), "inherit is neither true nor false"),
        (line({"start": []}), "a plan that is not open"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_before_the_ranks_start(order: bytes, why: str) -> None:
    with agent() as one:
        one.say(order)
        assert why in one.hear("cannot", "started")["why"]
        assert one.end() == (0, b"")


@pytest.mark.parametrize(
    "order",
    [
        b"what?\n",
        line({"end": 1 << 40}),
        line({"end": "TERM"}),
        line({"taken": 5}),
        line({"taken": -5}),
        line(PLAN),
        line({"kill": 1}),
        line({"start": PLAN["workers"]}),
        line({"close": 1}),
        line({"end": 15, "workers": 3}),
    ],
)
def test_an_order_that_makes_no_sense_ends_the_ranks(order: bytes) -> None:
    with agent() as one:
        one.say(line(PLAN))
        pid = one.hear("started")["pid"]
        one.say(order)
        assert one.hear("cannot")["why"]
        assert one.hear("exited") == {"event": "exited", "rank": 0, "exit_code": -15}
        one.hear("finished")
        assert one.end() == (0, b"")
        assert not os.path.exists(f"/proc/{pid}")


def test_what_a_rank_cannot_be_given_is_a_refusal_of_the_system() -> None:
    with agent() as one:
        one.say(line({**PLAN, "nofile": (1 << 31) - 1}))
        assert one.hear("refused", "started")["errno"] == 22
        one.hear("finished")
        assert one.end() == (0, b"")


def test_a_rank_that_is_stopped_and_goes_on_is_told_of_also_without_an_open_plan() -> None:
    with agent() as one:
        one.say(line(PLAN))
        pid = one.hear("started")["pid"]
        for _ in range(2):
            os.kill(pid, signal.SIGSTOP)
            assert one.hear("stopped", "continued") == {"event": "stopped", "rank": 0}
            os.kill(pid, signal.SIGCONT)
            assert one.hear("stopped", "continued") == {"event": "continued", "rank": 0}
        os.kill(pid, signal.SIGKILL)
        assert one.hear("exited") == {"event": "exited", "rank": 0, "exit_code": -9}


def test_what_becomes_of_ranks_whose_agent_is_ended_is_no_news_of_theirs() -> None:
    with agent() as one:
        one.say(line(PLAN))
        pid = one.hear("started")["pid"]
        # This process is the guard; the one that it watches over is the parent of the rank.
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait(LIMIT_S)
        assert one.rest() == []
        assert not os.path.exists(f"/proc/{pid}")


def start(*numbers: int, **own: str) -> bytes:
    """The request that starts these."""
    return line({"start": [{"rank": number, "environment": own} for number in numbers]})


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (start(0), "a rank that is there already"),
        (start(1, 1), "a rank is there twice"),
        (line({"start": {}}), "start is no list"),
        (line({"start": [{"rank": 1}]}), "start.environment is missing"),
        (line({"end": 15, "workers": [True]}), "workers is no number"),
        (line({"end": 15, "workers": [-1]}), "workers is no number"),
        (line({"end": 0, "workers": [0]}), "end is no number"),
        (line({"close": True}) + start(1), "a plan that is not open"),
        (line({"end": 15}) + start(1), "a plan that is not open"),
        (line(OPEN), "a second plan"),
        (line({"call": 1}) + b"x" + line({"call": 1}), "a second call"),
    ],
)
def test_an_order_that_makes_no_sense_ends_the_ranks_of_an_open_plan(order: bytes, why: str) -> None:
    with agent() as one:
        one.say(line(OPEN) + start(0))
        pid = one.hear("started")["pid"]
        one.say(order)
        assert why in one.hear("cannot")["why"]
        assert one.hear("exited") == {"event": "exited", "rank": 0, "exit_code": -15, "told": True}
        one.hear("finished")
        assert one.end() == (0, b"")
        assert not os.path.exists(f"/proc/{pid}")


def test_an_open_plan_that_is_closed_ends_with_its_last_rank() -> None:
    with agent() as one:
        one.say(line({**OPEN, "workers": PLAN["workers"]}) + start(1))
        for rank in (0, 1):
            assert one.hear("started")["rank"] == rank
        one.say(line({"close": True}))
        for rank in (1, 0):
            one.say(line({"end": 15, "workers": [rank, 7]}))  # the launcher may not have heard that 7 is gone
            assert one.hear("exited") == {"event": "exited", "rank": rank, "exit_code": -15, "told": True}
        assert one.hear("finished")["survivors"] == []
        assert one.end() == (0, b"")


def test_an_open_plan_without_ranks_ends_when_it_is_closed_or_nobody_is_there() -> None:
    with agent() as one:
        one.say(line(OPEN) + line({"close": True}))
        one.hear("finished")
        assert one.end() == (0, b"")
    with agent() as one:
        one.say(line(OPEN) + start(0))
        pid = one.hear("started")["pid"]
        with Watched(pid) as watched:
            assert one.process.stdin is not None
            one.process.stdin.close()
            assert watched.still_running(LIMIT_S) == []
        assert one.process.wait(LIMIT_S) == 0


NOTICED = """
import os, sys, time
from horovod.elastic.departure import drained_by_signal

class Member:
    def leave(self, leaving):
        os.close(os.open(sys.argv[1], os.O_CREAT))
        return True

with drained_by_signal(Member()):
    print("there", flush=True)
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("ended", ["the launcher", "the rank"])
def test_ranks_whose_launcher_is_gone_take_sigterm_for_their_end(ended: str, tmp_path: Path) -> None:
    """By itself SIGTERM is a notice: the job would wait for the rank until the agent kills it."""
    noticed = tmp_path / "noticed"
    command = [sys.executable, "-c", NOTICED, str(noticed)]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with agent() as one:
        one.say(line({**OPEN, "command": command}) + start(0, **path))
        pid = one.hear("started")["pid"]
        one.hear("output")
        if ended == "the rank":
            os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + LIMIT_S
            while not noticed.exists():
                assert time.monotonic() < until
                time.sleep(0.01)  # a file tells of nothing by itself
            return
        with Watched(pid) as watched:
            assert one.process.stdin is not None
            one.process.stdin.close()
            assert watched.still_running(LIMIT_S) == []
        assert not noticed.exists()


def test_a_closed_plan_ends_what_its_ranks_have_left_behind(tmp_path: Path) -> None:
    # A daemon that has not given up its environment yet is one of its rank, so the rank waits for both.
    told, never = tmp_path / "told", tmp_path / "never"
    for pipe in (told, never):
        os.mkfifo(pipe)
    daemon = f"setsid sh -c 'echo > {told}; read nothing < {never}' & read nothing < {told}"
    left = f"env -i {daemon}; {daemon}; exit 0"
    with agent() as one:
        one.say(line({**OPEN, "command": ["sh", "-c", left]}) + start(0) + line({"close": True}))
        assert one.hear("exited")["exit_code"] == 0
        assert one.hear("left_behind") == {"event": "left_behind", "processes": 1, "rank": 0}
        assert one.hear("gone") == {"event": "gone", "rank": 0, "survivors": []}
        assert one.hear("left_behind") == {"event": "left_behind", "processes": 1}
        one.hear("finished")
        assert one.end() == (0, b"")


def test_a_rank_is_gone_when_the_launcher_has_taken_what_it_has_printed() -> None:
    printed = '{"event": "printed"}\n'
    window = len(printed)
    command = ["sh", "-c", f"printf '%s\\n%s\\n' '{printed.strip()}' '{printed.strip()}'"]
    with agent() as one:
        one.say(line({**OPEN, "command": command, "window": window}) + start(0))
        assert one.hear("output")["size"] == window
        assert one.hear("exited", "gone")["event"] == "exited"
        one.say(line({"taken": window}))
        assert one.hear("output", "gone")["size"] == window
        one.say(line({"taken": window}))
        assert one.hear("gone")["rank"] == 0


def test_a_rank_for_which_there_is_no_room_is_refused_alone() -> None:
    with agent() as one:
        one.say(line(OPEN) + start(0))
        parent = stat_of(one.hear("started")["pid"])
        assert parent is not None
        pid = parent.parent
        one.say(start(1))
        one.hear("started")  # so nothing is open any more that belongs to the first start
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for room in range(8):  # at any point of a start there may be none for more
            before = os.listdir(f"/proc/{pid}/fd")
            most = max(int(each) for each in before) + 1 + room
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, limits[1]))
            one.say(start(2))
            refused = one.hear("refused", "started")
            if refused["event"] == "started":
                break
            assert refused == {"event": "refused", "rank": 2, "errno": errno.EMFILE}
            one.hear("gone")
            assert len(os.listdir(f"/proc/{pid}/fd")) <= len(before)
        else:
            raise AssertionError("no room for a rank at all")
        assert room > 3
        one.say(line({"end": 15, "workers": [1]}))
        assert one.hear("exited")["rank"] == 1


def masks(ranks: int, **variables: str) -> tuple[list[str], list[dict[str, Any]]]:
    """What each rank on a host with these variables has as a mask, and what the agent says of devices."""
    workers = [{"rank": 4 + each, "environment": {"HOROVOD_LOCAL_RANK": str(each)}} for each in range(ranks)]
    found: list[str] = []
    said: list[dict[str, Any]] = []
    with agent(**variables) as one:
        one.say(line({**PLAN, "environment": {"HOROVOD_DEVICE_PER_RANK": "1"}, "workers": workers}))
        while len(found) < ranks:
            event = one.hear("started", "few_devices")
            if event["event"] == "few_devices":
                said.append(event)
                continue
            with open(f"/proc/{event['pid']}/environ", encoding="utf-8") as file:
                words = dict(word.partition("=")[::2] for word in file.read().split("\0"))
            found.append(words.get("CUDA_VISIBLE_DEVICES", ""))
        one.say(line({"kill": True}))
        one.hear("finished")
    return found, said


def test_each_rank_sees_a_device_of_its_own_host() -> None:
    assert masks(2, CUDA_VISIBLE_DEVICES="6,7") == (["6", "7"], [])
    assert masks(2, CUDA_VISIBLE_DEVICES="GPU-1a, MIG-2b,GPU-3c") == (["GPU-1a", "MIG-2b"], [])


def test_ranks_share_where_there_are_fewer_devices() -> None:
    few = {"event": "few_devices", "rank": 4, "devices": 2, "ranks": 3}
    assert masks(3, CUDA_VISIBLE_DEVICES="6,7") == (["6", "7", "6"], [few])
    none = {"event": "few_devices", "rank": 4, "devices": 0, "ranks": 2}
    assert masks(2, CUDA_VISIBLE_DEVICES="") == (["", ""], [none])


@pytest.mark.parametrize(
    ("place", "devices", "ranks"),
    [
        ((0, 3), ["6", "7"], 3),
        ((1, 3), ["6", "7"], 0),  # the agent of local rank 0 tells
        ((0, 3), ["6"], 0),  # which may be this rank's own
        ((0, 3), [], 3),
        ((0, 2), ["6", "7"], 0),
    ],
)
def test_an_agent_of_one_rank_tells_of_devices_for_all(
    place: tuple[int, int], devices: list[str], ranks: int
) -> None:
    environment = {b"HOROVOD_LOCAL_RANK": b"%d" % place[0], b"HOROVOD_LOCAL_SIZE": b"%d" % place[1]}
    assert host.ranks_too_many([environment], devices) == ranks


def test_an_agent_that_starts_ranks_one_by_one_knows_that_one_device_is_that_of_all() -> None:
    environment = {b"HOROVOD_LOCAL_RANK": b"0", b"HOROVOD_LOCAL_SIZE": b"3"}
    assert host.ranks_too_many([environment], ["6"], one_by_one=True) == 3


def test_an_agent_counts_the_cores_that_its_control_group_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: (3, True))
    assert host.facts()["cores"] == 3

"""Finding out which hosts there are."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horovod.errors import ConfigError
from horovod.launch.elastic.discovery import (
    Discovered,
    DiscoveryFailed,
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    Poller,
    Steady,
    ask,
    parse_discovered,
)


@pytest.mark.parametrize(
    ("text", "slots", "found"),
    [
        ("", None, {}),
        ("\n \n", None, {}),
        ("h", 3, {"h": 3}),
        ("h:2", None, {"h": 2}),
        ("h:2", 7, {"h": 2}),
        ("\nb:1\n\na:2\n  c:3 \n\n", None, {"b": 1, "a": 2, "c": 3}),
        ("a:2\na:2\n", None, {"a": 2}),
        ("a\na\n", 4, {"a": 4}),
        ("h:0", None, {"h": 0}),
        ("10.0.0.1:2", None, {"10.0.0.1": 2}),
    ],
)
def test_lines_are_hosts(text: str, slots: int | None, found: dict[str, int]) -> None:
    assert parse_discovered(text, slots) == found
    assert list(parse_discovered(text, slots)) == list(found)  # in their order


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("h", "line 1, 'h', has no number of slots: print host:slots, or give --slots-per-host"),
        ("a:1\nb:x", "line 2, 'b:x', is neither host nor host:slots"),
        ("a:1:2", "neither host nor host:slots"),
        ("fe80::1", "neither host nor host:slots"),
        ("a 4", "neither host nor host:slots"),
        ("a:-1", "neither"),
        ("a:1\na:2", "line 2 gives host a 2 slots, an earlier one 1"),
        ("-oProxyCommand=x:1", "not the name of a host"),
        ("a:99999999999", "neither"),
        ("\x1b[2J:1", "not the name of a host"),
    ],
)
def test_other_lines_are_errors_that_show_them(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what.replace("[", r"\[")):
        parse_discovered(text)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def make(text: str) -> str:
        path = tmp_path / "discover.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_a_script_is_asked(script: Callable[[str], str]) -> None:
    discovery = HostDiscoveryScript(script("echo a:2; echo b"), 4)
    assert discovery.find_available_hosts_and_slots() == {"a": 2, "b": 4}


def test_a_script_may_be_a_line_of_shell(script: Callable[[str], str]) -> None:
    assert HostDiscoveryScript("echo a:2 | tr a b", None).find_available_hosts_and_slots() == {"b": 2}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("echo oops >&2; exit 3", "ended with status 3: oops"),
        ("exit 1", r"ended with status 1\."),
        ("echo 'not a host'", "line 1, 'not a host', is neither"),
        ("kill -9 $$", "ended with status 137"),
        ("yes a:1", "prints without end"),
        ("sleep 60", "did not end within 0.3 s and was killed"),
    ],
)
def test_a_script_that_fails_is_named(script: Callable[[str], str], text: str, what: str) -> None:
    discovery = HostDiscoveryScript(script(text), None, limit_s=0.3 if "0.3" in what else 30.0)
    with pytest.raises(DiscoveryFailed, match=what) as caught:
        discovery.find_available_hosts_and_slots()
    assert "discover.sh" in str(caught.value)


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(DiscoveryFailed, match=r"ended with status 127: .*no-such-script"):
        HostDiscoveryScript("./no-such-script", None).find_available_hosts_and_slots()


WAITS_FOR_ALL = f"""
exec {sys.executable} - <<'END'
import os
try:
    while True:
        os.wait()
except ChildProcessError:
    print("a:1")
END
"""


@pytest.mark.parametrize(
    "text",
    [WAITS_FOR_ALL, "read line || echo a:1", '[ "$(ls /proc/self/fd | wc -l)" = 4 ] && echo a:1'],
    ids=["children", "input", "descriptors"],
)
def test_a_script_sees_nothing_of_its_guard(script: Callable[[str], str], text: str) -> None:
    assert HostDiscoveryScript(script(text), None).find_available_hosts_and_slots() == {"a": 1}


def test_what_holds_its_pipes_open_does_not_count(script: Callable[[str], str]) -> None:
    began = time.monotonic()
    assert HostDiscoveryScript(script("sleep 50 & echo a:1"), None).find_available_hosts_and_slots() == {
        "a": 1
    }
    assert time.monotonic() - began < 40.0


def test_what_a_script_leaves_behind_is_ended(script: Callable[[str], str], tmp_path: Path) -> None:
    discovery = HostDiscoveryScript(
        script(f"sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > {tmp_path}/pid; echo a:1"), None
    )
    assert discovery.find_available_hosts_and_slots() == {"a": 1}
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while (
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]
    ):
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def test_fixed_hosts_are_set() -> None:
    given = {"a": 1}
    discovery = FixedHosts(given)
    given["b"] = 2
    assert discovery.find_available_hosts_and_slots() == {"a": 1}
    discovery.set({"b": 2})
    assert discovery.find_available_hosts_and_slots() == {"b": 2}


class _Odd(HostDiscovery):
    def __init__(self, answers: Iterator[object]) -> None:
        self._answers = answers

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (KeyError("gone"), "'gone'"),
        (RuntimeError(), "RuntimeError"),
        (None, "items"),
        ({"a": "many"}, "many"),
        ({"": 1}, "not the name of a host"),
        ({"a": -1}, "cannot have -1 slots"),
    ],
)
def test_a_class_that_fails_is_told(answer: object, failure: str) -> None:
    found = ask(_Odd(iter([answer])))
    assert found.hosts is None
    assert failure in found.failure


def test_a_host_without_slots_is_not_there() -> None:
    assert ask(_Odd(iter([{"a": 0, "b": 1}]))) == Discovered({"b": 1})


def test_the_poller_tells_changes_only() -> None:
    answers = [{"a": 1}, {"a": 1}, RuntimeError("x"), RuntimeError("x"), {"a": 1}, {"b": 1}, {"b": 1}]
    poller = Poller(_Odd(iter(answers)), interval_s=0.0)
    poller.start()
    found: list[Discovered] = []
    deadline = time.monotonic() + 30
    while Discovered({"b": 1}) not in found:
        select.select([poller.fileno()], [], [], max(0.0, deadline - time.monotonic()))
        assert time.monotonic() < deadline
        found += poller.take()
    poller.close()
    assert found[:5] == [
        Discovered({"a": 1}),
        Discovered(None, "x"),
        Discovered({"a": 1}),
        Discovered({}),
        Discovered({"b": 1}),
    ]


def test_a_host_counts_once_it_was_listed_twice_in_a_row() -> None:
    steady = Steady()
    assert steady.take({"a": 1}) == Discovered({"a": 1})  # nobody waits for a second list at the start
    for _ in range(3):
        assert steady.take({"a": 1, "b": 2}) == Discovered({"a": 1})
        assert steady.take({"a": 1}) == Discovered({"a": 1}, passing=("b",))
    assert steady.take({"b": 2, "a": 1}) == Discovered({"a": 1})
    assert steady.take({"b": 2, "a": 1}) == Discovered({"b": 2, "a": 1})
    assert steady.take({"a": 1}) == Discovered({"a": 1})  # what is gone is gone at once
    assert steady.take({"a": 1, "b": 2}) == Discovered({"a": 1})


def test_a_further_slot_counts_once_it_was_listed_twice_in_a_row() -> None:
    steady = Steady({"a": 2})
    assert steady.take({"a": 4}) == Discovered({"a": 2})
    assert steady.take({"a": 3}) == Discovered({"a": 3}, passing=("a",))
    assert steady.take({"a": 1}) == Discovered({"a": 1})
    assert steady.take({"a": 2, "b": 1}) == Discovered({"a": 1})
    assert steady.take({"a": 2, "b": 1}) == Discovered({"a": 2, "b": 1})
    assert steady.take({}) == Discovered({})


def test_hosts_that_are_set_count_at_once() -> None:
    hosts = FixedHosts({"a": 1})
    poller = Poller(hosts, interval_s=0.0)
    poller.start()
    select.select([poller.fileno()], [], [], 30.0)
    assert poller.take() == [Discovered({"a": 1})]
    hosts.set({"a": 1, "b": 1})
    select.select([poller.fileno()], [], [], 30.0)
    assert poller.take() == [Discovered({"a": 1, "b": 1})]
    poller.close()


def test_hosts_at_first_count_until_there_is_an_answer() -> None:
    poller = Poller(_Odd(iter([RuntimeError("x"), {"a": 1, "b": 1}, {"a": 1, "b": 1}])), 0.0, {"a": 2})
    poller.start()
    found: list[Discovered] = []
    deadline = time.monotonic() + 30
    while len(found) < 4:
        select.select([poller.fileno()], [], [], max(0.0, deadline - time.monotonic()))
        assert time.monotonic() < deadline
        found += poller.take()
    poller.close()
    assert found[:4] == [
        Discovered({"a": 2}),
        Discovered(None, "x"),
        Discovered({"a": 1}),
        Discovered({"a": 1, "b": 1}),
    ]


def test_closing_the_poller_waits_for_no_script() -> None:
    poller = Poller(HostDiscoveryScript("sleep 5", None, limit_s=5.0))
    poller.start()
    began = time.monotonic()
    poller.close()
    assert time.monotonic() - began < 4.0


def test_a_script_does_not_get_our_input(script: Callable[[str], str]) -> None:
    read_end, write_end = os.pipe()
    try:
        assert HostDiscoveryScript(script("cat; echo a:1"), None).find_available_hosts_and_slots() == {"a": 1}
    finally:
        os.close(read_end)
        os.close(write_end)

"""Discovery of hosts: a script, a fixed list, or a class of the user's.

Parsing is a pure function. A script is given a time limit, so that one that hangs is an error with a name.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from horovod.errors import ConfigError, LaunchError
from horovod.launch.mailbox import Mailbox
from horovod.launch.placement.hosts import MOST_HOSTS, MOST_SLOTS, HostSlots
from horovod.runtime.ending import harmless

__all__ = [
    "DiscoveryFailed",
    "Discovered",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "Poller",
    "Steady",
    "ask",
    "parse_discovered",
]

POLL_S = 1.0
"""Between two questions, from the end of one to the start of the next."""

SCRIPT_LIMIT_S = 60.0
_CLOSE_S = 5.0
_AGAIN_S = 0.05
_MOST_OUTPUT_BYTES = 16 << 20
_MOST_SAID_BYTES = 4096
_MOST_SHOWN = 200
_GUARDED = (
    "exec 3<&0 </dev/null;"
    # Nobody's child: a script that waits for all of its own does not wait for this.
    "( { read -r line <&3; kill -9 0; } >/dev/null 2>&1 & );"
    'exec 3<&-; exec /bin/sh -c "$0"'
)
"""Runs the next word as a command of the shell. Standard input is a pipe from who wants to know: when that
has ended, killed maybe, the command is killed with what it has started.
"""

_LINE = re.compile(r"([^\s:]+)(?::([0-9]{1,9}))?")


class DiscoveryFailed(LaunchError):
    """Hosts could not be found out; the message says what was asked and what went wrong."""


class HostDiscovery:
    """Finds the hosts of an elastic job. Subclasses implement one method.

    Attributes:
        at_once: each answer counts. Else a host, or a further slot, counts once it was in two answers in a
            row: a list may flap, and a worker takes longer to start than the next answer to come.
    """

    at_once = False

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Slots by host, of all hosts that ranks may use now. Called about once a second, from one thread.

        Raises:
            Exception: it is not known now. At the first call that ends the job; later it is told, and the
                hosts stay what they were.
        """
        raise NotImplementedError


class FixedHosts(HostDiscovery):
    """Hosts that change only by :meth:`set`.

    Args:
        host_slots: slots by host.
    """

    at_once = True

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._host_slots = dict(host_slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._host_slots)

    def set(self, host_slots: Mapping[str, int]) -> None:
        """These are the hosts from now on. From any thread."""
        self._host_slots = dict(host_slots)


class HostDiscoveryScript(HostDiscovery):
    """Asks a program, which prints one host a line: ``name`` or ``name:slots``.

    Args:
        discovery_script: a command of the shell.
        slots: of a host whose line has no number; None: each line must have one.
        limit_s: how long the program may take; then it is killed, with what it started.
    """

    def __init__(self, discovery_script: str, slots: int | None, *, limit_s: float = SCRIPT_LIMIT_S) -> None:
        self._script = discovery_script
        self._slots = slots
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None  # not reaped; guarded by _lock

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """
        Raises:
            DiscoveryFailed: the program fails, takes too long, or prints what names no hosts.
        """
        try:
            # A session of its own: its whole family can be ended, and Ctrl-C reaches the launcher only.
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, self._script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise DiscoveryFailed(f"{self._named()} cannot be run: {error.strerror}.") from error
        with self._lock:
            self._running = process
        try:
            ended, printed, said = _heard(process, time.monotonic() + self._limit_s)
        finally:
            with self._lock:
                self._running = None
                _end_session(process)
        if len(printed) > _MOST_OUTPUT_BYTES:
            raise DiscoveryFailed(f"{self._named()} prints without end: that is no list of hosts.")
        if not ended:
            raise DiscoveryFailed(f"{self._named()} did not end within {self._limit_s:g} s and was killed.")
        if process.returncode:
            last = harmless(said.decode(errors="replace").strip()[-_MOST_SHOWN:])
            raise DiscoveryFailed(
                f"{self._named()} ended with status {process.returncode}{f': {last}' if last else ''}."
            )
        try:
            return parse_discovered(printed.decode(errors="replace"), self._slots)
        except ConfigError as error:
            raise DiscoveryFailed(f"{self._named()}: {error}") from error

    def interrupt(self) -> None:
        """Kill the program, if it runs now. From any thread."""
        with self._lock:
            if self._running is not None:
                _kill_session(self._running)

    def _named(self) -> str:
        return f"The host discovery script {self._script!r}"


def parse_discovered(text: str, slots: int | None = None) -> dict[str, int]:
    """The hosts that lines ``name`` or ``name:slots`` say, in the order of the lines.

    Args:
        text: blank lines mean nothing, a line that is repeated counts once.
        slots: of a line without a number.

    Raises:
        ConfigError: a line is neither; it has no number and ``slots`` is None; or two lines give one host
            different numbers.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if match is None:
            raise ConfigError(f"line {number}, {words[:_MOST_SHOWN]!r}, is neither host nor host:slots.")
        if match[2] is None and slots is None:
            raise ConfigError(
                f"line {number}, {words[:_MOST_SHOWN]!r}, has no number of slots: print host:slots, or give "
                "--slots-per-host."
            )
        host = HostSlots(match[1], min(int(match[2]), MOST_SLOTS) if match[2] else int(slots or 0))
        if found.setdefault(host.name, host.slots) != host.slots:
            raise ConfigError(
                f"line {number} gives host {host.name} {host.slots} slots, an earlier one {found[host.name]}."
            )
        if len(found) > MOST_HOSTS:
            raise ConfigError(f"more than {MOST_HOSTS} hosts.")
    return found


@dataclass(frozen=True)
class Discovered:
    """An answer: ``hosts``, or why there is none. ``passing``: hosts that were listed once, or with more
    slots, and did not stay.
    """

    hosts: Mapping[str, int] | None
    failure: str = ""
    passing: tuple[str, ...] = ()


class Steady:
    """Filter for lists of hosts that may flap: a host, or a further slot, counts once it is in two in a row.

    Args:
        first: counts before there is a list; None: the first list counts.
    """

    def __init__(self, first: Mapping[str, int] | None = None) -> None:
        self._counting = first
        self._listed: Mapping[str, int] = {}

    def take(self, listed: Mapping[str, int]) -> Discovered:
        """The next list."""
        before, self._listed = self._listed, listed
        if self._counting is None:
            self._counting = listed
            return Discovered(listed)
        was, counting = self._counting, {}
        for name, slots in listed.items():
            if counts := min(slots, max(was.get(name, 0), before.get(name, 0))):
                counting[name] = counts
        self._counting = counting
        passing = [
            name for name, slots in before.items() if slots > max(was.get(name, 0), listed.get(name, 0))
        ]
        return Discovered(counting, passing=tuple(passing))


class Poller:
    """Asks again and again, on a thread of its own: a script may take its time.

    Args:
        discovery: what is asked.
        interval_s: between an answer and the next question.
        first: hosts that are there at first, until there is an answer; None: nobody knows.
    """

    def __init__(
        self,
        discovery: HostDiscovery,
        interval_s: float = POLL_S,
        first: Mapping[str, int] | None = None,
    ) -> None:
        self._discovery = discovery
        self._first = first
        self._interval_s = interval_s
        self._found: Mailbox[Discovered] = Mailbox()
        self._stop = threading.Event()
        # A daemon: a script that hangs must not keep the launcher.
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def fileno(self) -> int:
        """Readable while there is an answer."""
        return self._found.fileno()

    def take(self) -> list[Discovered]:
        """The answers since the last call; of equal ones that follow each other only the first."""
        return self._found.take()

    def close(self) -> None:
        """Ask no more. A script that runs is ended; a class of the user's may go on for a while."""
        self._stop.set()
        if isinstance(self._discovery, HostDiscoveryScript):
            until = time.monotonic() + _CLOSE_S
            while self._thread.is_alive() and time.monotonic() < until:
                self._discovery.interrupt()  # the question may begin only now
                self._thread.join(_AGAIN_S)
        self._found.close()

    def _run(self) -> None:
        last: Discovered | None = None
        steady = Steady(self._first)
        if self._first is not None:
            last = Discovered(self._first)
            self._found.put(last)
        while not self._stop.is_set():
            found = ask(self._discovery)
            if found.hosts is not None and not self._discovery.at_once:
                found = steady.take(found.hosts)
            if found != last:
                self._found.put(found)
                last = found
            self._stop.wait(self._interval_s)


def ask(discovery: HostDiscovery) -> Discovered:
    """One question."""
    try:
        hosts = {}
        for name, slots in discovery.find_available_hosts_and_slots().items():
            host = HostSlots(str(name), int(slots))
            if host.slots:
                hosts[host.name] = host.slots
        return Discovered(hosts)
    except Exception as error:  # a class of the user's may raise anything
        return Discovered(None, str(error) or type(error).__name__)


def _heard(process: subprocess.Popen[bytes], until: float) -> tuple[bool, bytes, bytes]:
    """Wait for a script; returns whether it has ended in time, and what it has printed on both streams. It is
    over when the process has ended: what it leaves behind may hold its pipes open.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    printed: dict[int, bytearray] = {
        process.stdout.fileno(): bytearray(),
        process.stderr.fileno(): bytearray(),
    }
    out, err = printed
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (ended, *printed):
                selector.register(descriptor, selectors.EVENT_READ)
            while len(printed[out]) <= _MOST_OUTPUT_BYTES and time.monotonic() < until:
                ready = [key.fd for key, _ in selector.select(max(0.0, until - time.monotonic()))]
                pipes = [descriptor for descriptor in ready if descriptor != ended]
                if ended in ready and not pipes:
                    return True, bytes(printed[out]), bytes(printed[err])
                for descriptor in pipes:
                    data = os.read(descriptor, 1 << 16)
                    if not data:
                        selector.unregister(descriptor)
                    printed[descriptor] += data
                del printed[err][:-_MOST_SAID_BYTES]
    finally:
        os.close(ended)
    return False, bytes(printed[out]), bytes(printed[err])


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End everything that the script leaves behind in its session."""
    _kill_session(process)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass  # nothing is left

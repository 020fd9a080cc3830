"""Ranks that come and go: the processes that each has started, whether it stands still, and its end.

The kernel tells the agent when a child of its is stopped. But the rank may be further down (``sh -c "python
train.py; ..."``), and nothing tells of a control group that is frozen. So a rank of an elastic job says at
its first ``init()`` which process it is (`horovod.bootstrap.place.starter`), and the agent looks at it now
and then: a few small files. Only elastic jobs import this.
"""

from __future__ import annotations

import json
import os
import signal
import time

from horovod.bootstrap.place.control_groups import is_frozen
from horovod.bootstrap.place.proc import lines, namespace, stat_of
from horovod.launch.agent.processes import NEVER, EndingProcesses, descendants
from horovod.launch.agent.terms import LINGER_S, MOST_STOPS, STARTER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from horovod.bootstrap.place.proc import Stat
    from horovod.launch.agent.launcher import Launcher
    from horovod.launch.agent.streams import Outputs

NOBODY = -1  # in place of a rank: of a daemon that has given up its environment
_LOOK_S = 2.0  # between two looks at the process of a rank
_AGAIN_S = 0.2  # while one stands still: others may wait for it


class ProcessTree:
    """A rank and what it has started, until nothing of it is left.

    Args:
        pid: of the rank, and of its session; 0: it was never started.
        mark: what its environment says of it, and that of no other.
    """

    def __init__(self, rank: int, pid: int = 0, mark: bytes = b"") -> None:
        self.rank = rank
        self.mark = mark
        self.session = pid
        """0 when it is known to be empty: the number may be that of another one then."""
        self.running = pid != 0
        self.ending = EndingProcesses()
        self.linger_until = 0.0
        """Deadline for what the rank has left behind to end by itself; 0: nothing was found yet."""
        self.due = NEVER if pid else 0.0
        """When to look at it."""
        self.process: Process | None = None
        """The one that is the rank, when it has said so; a child of ours, or below one."""
        self.child_stopped = False
        self.process_stands = False
        self.stopped = False
        """State that the launcher was told last."""
        self.stops_left = MOST_STOPS

    def stands_still(self) -> bool:
        """True while the rank stands still. A program above it, such as a shell, may be stopped while the
        rank runs: it counts only until the rank's process is known, and again once that process has ended.
        """
        if self.process_stands or not self.child_stopped:
            return self.process_stands
        return self.process is None or self.process.pid == self.session or self.process.has_ended()

    def end(self, processes: Iterable[Stat], signum: int) -> None:
        if signum == signal.SIGKILL:
            self.ending.kill(processes)
        else:
            self.ending.begin(processes, signum)
        self.due = self.ending.due


class ProcessTrees:
    """Ranks of this host and the processes they started."""

    def __init__(self, launcher: Launcher, outputs: Outputs) -> None:
        self._launcher = launcher
        self._outputs = outputs
        self._by_rank: dict[int, ProcessTree] = {}
        self._silent: list[ProcessTree] = []  # nothing of them is left but what they have printed
        self._strays: ProcessTree | None = None  # what is nobody's, when there is nobody
        self._immortal: set[int] = set()  # strays that nobody could end
        self._look_at = NEVER  # the processes of ranks

    def __contains__(self, rank: int) -> bool:
        return rank in self._by_rank

    def __len__(self) -> int:
        return len(self._by_rank)

    def begin(self, rank: int, pid: int, mark: bytes) -> None:
        """This rank runs; with the process id 0: it could not be started."""
        self._by_rank[rank] = ProcessTree(rank, pid, mark)

    def end(self, ranks: Iterable[int], signum: int) -> None:
        """Send it to these ranks and what they have started; SIGKILL follows. Those that have ended are left
        out: the launcher may not have heard it yet.
        """
        found = self._members()
        for rank in ranks:
            tree = self._by_rank.get(rank)
            if tree is not None and tree.running:
                tree.end(found.get(rank, {}).values(), signum)

    def stands(self, rank: int, stopped: bool) -> None:
        """The process that was started for this rank was stopped by a signal, or goes on."""
        tree = self._by_rank.get(rank)
        if tree is not None:
            tree.child_stopped = stopped
            self._tell_whether_stopped(tree)

    def identified(self, rank: int, line: bytes) -> None:
        """This rank has said which process it is. The first one is, until it has ended: what it has started
        may take itself for the rank, too, and is refused elsewhere.
        """
        tree = self._by_rank.get(rank)
        if tree is None or not tree.running:
            return
        if tree.process is None or tree.process.has_ended():
            tree.process = named_by(line, lambda: self._members().get(rank, {}))
            self._look_at = min(self._look_at, time.monotonic() + _LOOK_S)

    def _look_at_processes(self, now: float) -> None:
        self._look_at = NEVER
        for tree in self._by_rank.values():
            if not tree.running or tree.process is None:
                continue
            tree.process_stands = tree.process.stands()
            self._tell_whether_stopped(tree)
            self._look_at = min(self._look_at, now + (_AGAIN_S if tree.process_stands else _LOOK_S))

    def _tell_whether_stopped(self, tree: ProcessTree) -> None:
        """Unless that is too often."""
        stopped = tree.stands_still()
        if tree.stopped == stopped or (stopped and not tree.stops_left):
            return
        tree.stopped = stopped
        tree.stops_left -= stopped
        self._launcher.say("stopped" if stopped else "continued", rank=tree.rank)

    def ended(self, rank: int) -> bool:
        """The process of this rank has; whether it was told to."""
        tree = self._by_rank[rank]
        tree.running = False
        tree.due = 0.0
        return tree.ending.begun

    def orphans_ended(self) -> None:
        """Some processes have ended that a rank had left behind: they may have been the last ones."""
        for tree in self._by_rank.values():
            if not tree.running and tree not in self._silent:
                tree.due = 0.0

    def due(self) -> float:
        """When to look."""
        strays = [self._strays] if self._strays is not None else []
        return min([self._look_at, *(tree.due for tree in [*self._by_rank.values(), *strays])])

    def look(self, *, childless: bool) -> None:
        """See to those that are being ended or have ended, and to what they have left behind."""
        for tree in self._silent[:]:
            self._let_go(tree, [])
        if not (self._by_rank or childless or self._strays):
            self._strays = ProcessTree(NOBODY)
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at_processes(now)
        if now < self.due():
            return
        found = self._members()
        for tree in list(self._by_rank.values()):
            if now >= tree.due:
                self._see_to(tree, found.get(tree.rank, {}), now)
        if self._strays is not None and now >= self._strays.due:
            self._immortal &= set(found.get(NOBODY, {}))
            left = {pid: stat for pid, stat in found.get(NOBODY, {}).items() if pid not in self._immortal}
            self._see_to(self._strays, left, now)

    def _see_to(self, tree: ProcessTree, processes: dict[int, Stat], now: float) -> None:
        if tree.ending.given_up(now) or not (processes or tree.running):
            self._let_go(tree, sorted(processes))
        elif tree.ending.begun:
            if now >= tree.ending.due:
                tree.ending.kill(processes.values())
            tree.due = tree.ending.due
        elif now < tree.linger_until:
            tree.due = tree.linger_until
        elif not tree.linger_until:
            tree.due = tree.linger_until = now + LINGER_S
        else:
            whose = {} if tree is self._strays else {"rank": tree.rank}
            self._launcher.say("left_behind", processes=len(processes), **whose)
            tree.end(processes.values(), signal.SIGTERM)

    def _let_go(self, tree: ProcessTree, survivors: list[int]) -> None:
        if tree is self._strays:
            self._strays = None
            self._immortal.update(survivors)
            return
        tree.due = NEVER
        if not self._outputs.drained(tree.rank):
            if tree not in self._silent:
                self._silent.append(tree)
            return
        if tree in self._silent:
            self._silent.remove(tree)
        del self._by_rank[tree.rank]
        self._launcher.say("gone", rank=tree.rank, survivors=survivors)

    def _members(self) -> dict[int, dict[int, Stat]]:
        """All live processes below this one, by rank and id.

        Each rank has a session of its own. What has left it is found by its parent; what its parent has left
        behind, too, by its environment. What has neither is `NOBODY`'s.
        """
        stats = descendants()
        trees = self._by_rank.values()
        sessions = {each.session: each.rank for each in trees if each.session}
        marks = {each.mark: each.rank for each in trees if each.mark}
        owners: dict[int, int] = {}
        for pid in stats:
            chain: list[int] = []
            at = pid
            while at not in owners:
                stat = stats[at]
                if stat.session in sessions:
                    owners[at] = sessions[stat.session]
                elif stat.parent not in stats or len(chain) > len(stats):  # our own child, or an odd moment
                    owners[at] = marks.get(_mark_of(at), NOBODY)
                else:
                    chain.append(at)
                    at = stat.parent
            owners.update(dict.fromkeys(chain, owners[at]))
        found: dict[int, dict[int, Stat]] = {}
        for pid, rank in owners.items():
            found.setdefault(rank, {})[pid] = stats[pid]
        in_use = {stat.session for stat in stats.values()}
        for tree in trees:
            if not tree.running and tree.session not in in_use:
                tree.session = 0
        return found


def _mark_of(pid: int) -> bytes:
    """Mark of its rank in the environment with which a process was started; empty: there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return b""
    return next((word for word in words if word.startswith(STARTER + b"=")), b"")


class Process:
    """A process, and no later one with its number."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._started = started

    def stands(self) -> bool:
        """True while the process does nothing until somebody continues it. A debugger that holds it is no
        such reason.
        """
        stat = self._stat()
        return stat is not None and (stat.state == "T" or is_frozen(self.pid))

    def has_ended(self) -> bool:
        stat = self._stat()
        return stat is None or stat.state in "ZX"

    def _stat(self) -> Stat | None:
        stat = stat_of(self.pid)
        return stat if stat is not None and stat.started == self._started else None


def named_by(line: bytes, candidates: Callable[[], Iterable[int]]) -> Process | None:
    """The process that such a word names; None: there is none, or the word makes no sense. ``candidates``
    finds those of a word from another namespace, where they have other numbers.
    """
    try:
        word = json.loads(line)
    except (ValueError, RecursionError):
        return None
    pid, where = word.get("process"), word.get("namespace")
    if type(pid) is not int or pid <= 0:
        return None
    if where == namespace("pid"):
        found: int | None = pid
    else:
        found = next((each for each in candidates() if _is(each, pid, where)), None)
    stat = stat_of(found) if found is not None else None
    return None if found is None or stat is None else Process(found, stat.started)


def _is(candidate: int, pid: int, where: Any) -> bool:
    """True if this process of ours has the number `pid` in the namespace `where`."""
    try:
        if os.stat(f"/proc/{candidate}/ns/pid").st_ino != where:
            return False
    except OSError:  # it has ended, or is somebody else's
        return False
    numbers = [line for line in lines(f"/proc/{candidate}/status") if line.startswith("NSpid:")]
    return bool(numbers) and numbers[0].split()[-1] == str(pid)

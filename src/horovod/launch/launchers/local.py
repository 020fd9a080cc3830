"""Starts ranks as processes of this machine, through an agent (see `agent`)."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from horovod.bootstrap.place.cores import usable_cores
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.errors import LaunchError
from horovod.launch.agent_client.messages import plan_request, request_line, to_event
from horovod.launch.contracts.events import Event, HostFacts
from horovod.launch.contracts.fleet import Request
from horovod.launch.contracts.launcher import Prepared, WorkerPlan
from horovod.launch.output.streams import Output
from horovod.launch.placement.hosts import Slot

__all__ = ["LocalLauncher", "LocalWorkers", "allow_descriptors"]

_AGENT = Path(__file__).parents[1] / "agent" / "bundle.py"
_SPARE_DESCRIPTORS = 64
_BYTECODE = ("-B",) if sys.dont_write_bytecode else ()  # isolated, it looks at no variable


class LocalLauncher:
    """All ranks on this machine, one session and one pair of pipes each.

    Args:
        descriptors: open ones that the ranks inherit under their numbers.
    """

    def __init__(self, descriptors: Sequence[int] = ()) -> None:
        self._descriptors = tuple(descriptors)
        self.nofile = 0
        """The limit on descriptors that ranks shall have, if this process has raised its own before."""

    def prepare(self, request: Request) -> Prepared:
        facts = HostFacts(machine="", cores=usable_cores()[0])
        return Prepared([unix.fresh_name()], dict.fromkeys(request.here, facts))

    def start(
        self, slots: Sequence[Slot], plan: WorkerPlan, store: StoreServer | None, output: Output
    ) -> LocalWorkers:
        streams = plan.streams
        nofile = self.nofile or allow_descriptors(2 * len(slots) * len(streams) + _SPARE_DESCRIPTORS)
        workers = []
        write_ends: list[int] = []
        call: dict[str, object] = {}
        if plan.call:
            write_ends.append(_memory(plan.call))
            call = {"call": write_ends[0], "call_is_input": plan.call_is_input}
        feeds = plan.stdin >= 0 and any(slot.rank == 0 for slot in slots)
        for slot in slots:
            worker: dict[str, object] = {"rank": slot.rank}
            for stream in streams:
                read_end, write_end = os.pipe()
                write_ends.append(write_end)
                worker[stream] = write_end
                output.attach(read_end, slot.rank, stream)
            if feeds and slot.rank == 0:
                worker["stdin"] = plan.stdin
            workers.append(worker)
        try:
            # Isolated and without site packages: nothing of the user's may run there, and it starts faster.
            agent = subprocess.Popen(
                [sys.executable, "-I", "-S", *_BYTECODE, str(_AGENT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[*write_ends, *([plan.stdin] if feeds else []), *self._descriptors],
                start_new_session=True,  # Ctrl-C reaches the launcher only, which decides
            )
        except OSError as error:
            raise LaunchError(f"The process that watches the ranks cannot be started: {error}") from error
        finally:
            for write_end in write_ends:
                os.close(write_end)
        started = LocalWorkers(agent)
        started.request(plan_request(plan, workers, plan.environment, nofile, **call))
        return started

    def close(self) -> None:
        pass  # the workers have their own


class LocalWorkers:
    """The ranks behind one agent."""

    def __init__(self, agent: subprocess.Popen[bytes]) -> None:
        assert agent.stdin is not None
        assert agent.stdout is not None
        self._agent = agent
        self._requests = agent.stdin.fileno()
        self._events = agent.stdout.fileno()
        self._unread = b""

    def fileno(self) -> int:
        return self._events

    def events(self) -> Sequence[Event]:
        data = os.read(self._events, 1 << 16)
        if not data:
            self._agent_lost()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [to_event(json.loads(line)) for line in lines]

    def finish(self, signum: int) -> None:
        self.request(request_line({"end": signum}))

    def kill(self) -> None:
        self.request(request_line({"kill": True}))

    def pass_on(self, signum: int) -> None:
        self.request(request_line({"signal": signum}))

    def request(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._requests, line) :]
        except BrokenPipeError:
            pass  # the agent is gone: `events` says so

    def close(self) -> None:
        for pipe in (self._agent.stdin, self._agent.stdout):
            if pipe is not None:
                pipe.close()
        self._agent.wait()

    def _agent_lost(self) -> None:
        raise LaunchError(
            f"The process that watches the ranks (process {self._agent.pid}) ended unexpectedly; "
            "all ranks were killed. If nobody killed it, look for 'out of memory' in the kernel's log."
        )


def _memory(pieces: Sequence[memoryview]) -> int:
    """A descriptor of memory with ``pieces`` in it."""
    descriptor = os.memfd_create("farandole-call")
    try:
        for piece in pieces:
            left = memoryview(piece).cast("B")
            while left:
                left = left[os.write(descriptor, left) :]
    except OSError as error:
        os.close(descriptor)
        raise LaunchError(f"The call does not fit into memory: {error.strerror}") from error
    return descriptor


def allow_descriptors(needed: int) -> int:
    """Make room for pipes. Returns the limit that ranks shall have as before, 0 if it is unchanged.

    Raises:
        LaunchError: the system does not allow as many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return 0
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise LaunchError(
            f"The launcher needs {needed} open files, the limit is {hard}. Raise it (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft

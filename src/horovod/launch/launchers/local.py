"""Ranks as processes of this machine, below one agent (see `horovod.launch.agent`)."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from horovod.bootstrap.place.cores import usable_cores
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.errors import LaunchError
from horovod.launch.agent_client.messages import plan_request, request_line, to_event
from horovod.launch.contracts.events import Event, Failed, Finished, HostFacts, HostReached
from horovod.launch.contracts.fleet import ClosedFleet, FleetPlan, FleetWorker, Grounds, Request
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import Output

__all__ = ["LocalFleet", "allow_descriptors"]

_AGENT = Path(__file__).parents[1] / "agent" / "bundle.py"
_SPARE_DESCRIPTORS = 64
_BYTECODE = ("-B",) if sys.dont_write_bytecode else ()  # isolated, it looks at no variable


class LocalFleet(ClosedFleet):
    """All hosts, whatever their names, are this machine. Each worker has a session and a pair of pipes, which
    it inherits: what it prints does not pass through the agent.

    Args:
        descriptors: open ones that the workers inherit under their numbers.
        nofile: limit on descriptors that workers shall have, if this process has raised its own before.
    """

    def __init__(
        self,
        request: Request | None,
        output: Output,
        *,
        descriptors: Sequence[int] = (),
        nofile: int = 0,
    ) -> None:
        self._output = output
        self._descriptors = tuple(descriptors)
        self._nofile = nofile
        self._agent: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._closed = False
        self._found: Mailbox[Event] = Mailbox()
        self._poller = select.epoll()
        self._poller.register(self._found.fileno(), select.EPOLLIN)

    def grounds(self) -> Grounds:
        return Grounds([unix.fresh_name()])

    def reach(self, host: str) -> None:
        self._found.put(HostReached(host, HostFacts(machine="", cores=usable_cores()[0])))

    def serve(self, plan: FleetPlan, store: StoreServer | None) -> None:
        self._plan = plan

    def start(self, workers: Sequence[FleetWorker]) -> None:
        plan = self._plan
        streams = plan.streams
        nofile = self._nofile or allow_descriptors(2 * len(workers) * len(streams) + _SPARE_DESCRIPTORS)
        asked = []
        fed: list[int] = []
        write_ends: list[int] = []
        call: dict[str, object] = {}
        if plan.call:
            write_ends.append(_memory(plan.call))
            call = {"call": write_ends[0], "call_is_input": plan.call_is_input}
        for worker in workers:
            rank: dict[str, object] = {"rank": worker.number, "environment": worker.own_environment}
            for stream in streams:
                read_end, write_end = os.pipe()
                write_ends.append(write_end)
                rank[stream] = write_end
                self._output.attach(read_end, worker.number, stream, worker.label)
            if worker.number == 0 and plan.stdin >= 0:
                fed.append(plan.stdin)
                rank["stdin"] = plan.stdin
            asked.append(rank)
        try:
            # Isolated and without site packages: nothing of the user's may run there, and it starts faster.
            self._agent = subprocess.Popen(
                [sys.executable, "-I", "-S", *_BYTECODE, str(_AGENT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[*write_ends, *fed, *self._descriptors],
                start_new_session=True,  # Ctrl-C reaches the launcher only, which decides
            )
        except OSError as error:
            raise LaunchError(f"The process that watches the ranks cannot be started: {error}") from error
        finally:
            for write_end in write_ends:
                os.close(write_end)
        assert self._agent.stdout is not None
        self._poller.register(self._agent.stdout, select.EPOLLIN)
        self._request(plan_request(plan.command, plan.environment, asked, nofile, **call))

    def fileno(self) -> int:
        return self._poller.fileno()

    def events(self) -> Sequence[Event]:
        ready = {descriptor for descriptor, _ in self._poller.poll(0)}
        found = self._found.take() if self._found.fileno() in ready else []
        if self._agent is not None and self._agent.stdout is not None:
            events = self._agent.stdout.fileno()
            if events in ready:
                try:
                    found += self._read(events)
                except LaunchError as error:
                    found += [Failed(error, unwatched=True), Finished(())]
                if found and isinstance(found[-1], Finished):
                    self._poller.unregister(events)
        return found

    def _read(self, descriptor: int) -> list[Event]:
        data = os.read(descriptor, 1 << 16)
        if not data:
            raise self._agent_lost()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [to_event(json.loads(line)) for line in lines]

    def finish(self, signum: int) -> None:
        self._request(request_line({"end": signum}))

    def kill(self) -> None:
        self._request(request_line({"kill": True}))

    def pass_on(self, signum: int) -> None:
        if self._agent is not None:
            self._request(request_line({"signal": signum}))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._poller.close()
        self._found.close()
        if self._agent is not None:
            for pipe in (self._agent.stdin, self._agent.stdout):
                if pipe is not None:
                    pipe.close()
            self._agent.wait()

    def _request(self, line: bytes) -> None:
        if self._agent is None:  # it was told to end before anything was started
            self._found.put(Finished(()))
            return
        assert self._agent.stdin is not None
        try:
            while line:
                line = line[os.write(self._agent.stdin.fileno(), line) :]
        except BrokenPipeError:
            pass  # the agent is gone: `events` says so

    def _agent_lost(self) -> LaunchError:
        assert self._agent is not None
        return LaunchError(
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

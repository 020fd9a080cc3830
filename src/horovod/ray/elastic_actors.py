"""Actors of an elastic job: a probe on each node, and the workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray

from horovod.bootstrap.place.cores import usable_cores
from horovod.bootstrap.place.proc import boot_id, every_process, namespace, stat_of
from horovod.bootstrap.place.starter import Word, line_of
from horovod.errors import HorovodInternalError, LaunchError, PeerLostError
from horovod.launch.agent.processes import pass_on
from horovod.launch.calls.functions import answer
from horovod.ray import ray_logger
from horovod.ray.worker import leave_outer_job
from horovod.runtime import lifecycle
from horovod.runtime.ending import describe

__all__ = ["ActorProcess", "ElasticWorker", "Facts", "NodeProbe", "Reply"]


class Facts(NamedTuple):
    """Of a node. ``machine``: the same text on all nodes of one system."""

    machine: str
    cores: int


class ActorProcess(NamedTuple):
    """``started``: ticks from boot; with it no later process of this number is taken for it."""

    pid: int
    started: int


class Reply(NamedTuple):
    """Outcome of a call: bytes to be sent home, and a word about a failure, else empty."""

    data: bytes
    word: str


class NodeProbe:
    """Gives signs of life of its node, passes signals on, and ends what does not end by itself."""

    def facts(self) -> Facts:
        """Of this node."""
        return Facts(" ".join([boot_id(), str(namespace("net")), str(namespace("pid"))]), usable_cores()[0])

    def ping(self) -> None:
        """Return, as a sign of life."""

    def kill(self, process: ActorProcess) -> None:
        """A worker, also one that is stopped. No effect if it has ended."""
        if _lives(process):
            os.kill(process.pid, signal.SIGKILL)

    def pass_on(self, workers: Mapping[int, ActorProcess], signum: int) -> tuple[list[int], list[int]]:
        """Send a signal to the workers, by number, that have a handler for it.

        Returns:
            The workers that it was sent to, and those without a handler.
        """
        there = {process.pid: number for number, process in workers.items() if _lives(process)}
        return pass_on(there, dict(every_process()), signum)


def _lives(process: ActorProcess) -> bool:
    stat = stat_of(process.pid)
    return stat is not None and stat.started == process.started


class ElasticWorker:
    """One worker: it makes one call."""

    _began = False

    def begin(self, environment: Mapping[str, str], queue: Any) -> ActorProcess:
        """Be a worker of this job, whose messages go to ``queue``."""
        leave_outer_job()
        os.environ.update(environment)
        ray_logger.configure(queue)
        self._began = True
        stat = stat_of(os.getpid())
        return ActorProcess(os.getpid(), stat.started if stat is not None else 0)

    def node_id(self) -> str:
        """Of Ray's node."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, call: bytes) -> Reply:
        """Make the call. If it fails, this process has to end soon: it is still in its world.

        Raises:
            LaunchError: it could not begin, so it knows no job that it is in.
        """
        if not self._began:
            raise LaunchError("A worker that could not begin makes no call.")
        pieces, error = answer(memoryview(bytearray(call)))
        word = "" if error is None else line_of(Word(False, f"raised {describe(error)}", _because(error)))
        if error is None:
            lifecycle.stop()  # the others hear that it has left in peace
        return Reply(b"".join(pieces), word)


def _because(error: BaseException) -> int | None:
    """The rank that has failed before."""
    return error.rank if isinstance(error, (PeerLostError, HorovodInternalError)) else None

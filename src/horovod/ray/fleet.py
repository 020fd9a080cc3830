"""The workers of an elastic job as actors of Ray: an actor for each, and on each node one that gives signs of
life, as Ray itself may take minutes to find out that a machine has fallen silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayTaskError

from horovod.bootstrap.place.starter import Word, line_of
from horovod.errors import LaunchError
from horovod.launch.agent_client.connection import DOUBTED
from horovod.launch.contracts.events import (
    Event,
    Exited,
    Finished,
    Gone,
    HostFacts,
    HostLost,
    HostReached,
    PassedOn,
    Said,
    Started,
)
from horovod.launch.contracts.fleet import FleetPlan, FleetWorker, Request
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import RESULT, Output
from horovod.ray.elastic_actors import ActorProcess, ElasticWorker, NodeProbe, Reply
from horovod.ray.nodes import NodeNames, describe_resources, on_node
from horovod.runtime.ending import describe

__all__ = ["ActorFleet", "Wanted"]

_TICK_S = 1.0
_FAILED = 1  # the exit code of an actor that has died, or cannot be started
_MOST_WHY = 600
_PART_S = 5.0  # how long a probe may take to end what it is told to


class Wanted(NamedTuple):
    """Resources of actors. ``environment``: set over the plan's; ``queue``: where messages go."""

    cpus: float
    gpus: float
    environment: Mapping[str, str]
    queue: Any


@dataclass
class _Node:
    probe: Any = None
    node_id: str = ""
    reached: bool = False
    since: float = field(default_factory=time.monotonic)
    """When it was asked for what has not been answered."""
    asked: bool = True
    doubted: bool = False
    """Others have lost it, and it has not been heard of since."""
    kills: list[Any] = field(default_factory=list)
    """Calls that told the probe to end something and are not answered yet."""


@dataclass
class _Worker:
    node: str
    actor: Any
    since: float = field(default_factory=time.monotonic)
    process: ActorProcess | None = None
    told: int = 0
    """The signal that it was to end by."""
    ended: bool = False


class _Leaving(NamedTuple):
    probe: Any
    kills: list[Any]
    until: float


_Step = Callable[[list[Event]], None]


class ActorFleet:
    """A `Fleet` of actors.

    Args:
        names: of the nodes.
        wanted: of each actor.
    """

    def __init__(
        self, request: Request, plan: FleetPlan, output: Output, *, names: NodeNames, wanted: Wanted
    ) -> None:
        self._limits = request.limits
        self._console = request.console
        self._plan = plan
        self._output = output
        self._names = names
        self._wanted = wanted
        self._call = ray.put(b"".join(plan.call))
        self._nodes: dict[str, _Node] = {}
        self._workers: dict[int, _Worker] = {}
        self._leaving: list[_Leaving] = []
        self._finishing = self._finished = False
        self._steps: Mailbox[_Step] = Mailbox()
        self._seekers = ThreadPoolExecutor(1, "horovod-ray-seek")
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="horovod-ray-tick", daemon=True)
        self._ticker.start()

    def reach(self, host: str) -> None:
        if self._finishing or host in self._nodes:
            return
        node = self._nodes[host] = _Node()
        self._seekers.submit(self._seek, host, node)

    def rejoin(self, host: str, workers: Sequence[FleetWorker]) -> None:
        raise LaunchError("Elastic jobs on Ray end with their driver: another one cannot go on with them.")

    def start(self, worker: FleetWorker) -> None:
        node = self._nodes.get(worker.host)
        if node is None or not node.reached:
            raise ValueError(f"node {worker.host} is not reached: nothing can be started there")
        if worker.number in self._workers:
            raise ValueError(f"worker {worker.number} is there already")
        self._output.expect(worker.number, RESULT, worker.label)
        made = ray.remote(ElasticWorker).options(
            num_cpus=self._wanted.cpus, num_gpus=self._wanted.gpus, scheduling_strategy=on_node(node.node_id)
        )
        actor = made.remote()
        self._workers[worker.number] = _Worker(worker.host, actor)
        environment = {**self._plan.environment, **worker.own_environment, **self._wanted.environment}
        number = worker.number
        self._then(
            actor.begin.remote(environment, self._wanted.queue), lambda *said: self._began(number, *said)
        )
        self._then(actor.run.remote(self._call), lambda *said: self._replied(number, *said))

    def end(self, numbers: Collection[int], signum: int) -> None:
        for number in numbers:
            worker = self._workers.get(number)
            if worker is not None:
                worker.told = worker.told or signum
                self._kill(worker)

    def pass_on(self, signum: int) -> None:
        """By the probes of the nodes: Ray itself sends no signals."""
        by_node: dict[str, dict[int, ActorProcess]] = {}
        for number, worker in self._workers.items():
            if worker.process is not None:
                by_node.setdefault(worker.node, {})[number] = worker.process
        begun = {number for each in by_node.values() for number in each}
        self._steps.put(lambda found: found.append(PassedOn(signum, (), tuple({*self._workers} - begun))))
        for host, processes in by_node.items():
            node = self._nodes.get(host)  # if it was dropped, its workers are being ended
            if node is not None and node.reached:
                sent = node.probe.pass_on.remote(processes, signum)
                self._then(sent, lambda *said: self._passed(signum, *said))

    def doubt(self, host: str) -> None:
        if host in self._nodes:
            self._nodes[host].doubted = True

    def drop(self, host: str) -> None:
        self.end([number for number, each in self._workers.items() if each.node == host], 15)
        self._let_go(host)

    def fileno(self) -> int:
        return self._steps.fileno()

    def events(self) -> Sequence[Event]:
        found: list[Event] = []
        for step in self._steps.take():
            step(found)
        if self._finishing and not self._workers and not self._finished:
            self._finished = True
            found.append(Finished(()))
        return found

    def finish(self, signum: int) -> None:
        self._finishing = True
        self.end(list(self._workers), signum)
        for host in list(self._nodes):
            self._let_go(host)
        self._steps.put(lambda found: None)  # nothing may be left to wait for

    def kill(self) -> None:
        self.finish(9)

    def close(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self.finish(9)
        self._ticker.join()
        self._seekers.shutdown()
        self._part(wait=True)
        self._steps.close()

    # What comes from other threads.

    def _then(self, reference: Any, do: Callable[[list[Event], Any, Exception | None], None]) -> None:
        """When the object is there, or will never be, ``do(events, object, error)`` in `events`."""

        def done(future: Any) -> None:
            error = future.exception()
            value = None if error is not None else future.result()
            self._steps.put(lambda found: do(found, value, error))

        reference.future().add_done_callback(done)

    def _tick(self) -> None:
        while not self._over.wait(_TICK_S):
            self._steps.put(self._look)

    def _seek(self, host: str, node: _Node) -> None:
        """Find the node of Ray for a host, by a question to the cluster."""
        try:
            node_id = self._names.node_of(host)
        except Exception as error:
            why = str(error)
            self._steps.put(lambda found: self._lose(host, node, why, found))
        else:
            self._steps.put(lambda found: self._dial(host, node, node_id))

    # What is done in `events`.

    def _dial(self, host: str, node: _Node, node_id: str) -> None:
        if self._nodes.get(host) is not node:
            return  # it was dropped
        node.node_id, node.since = node_id, time.monotonic()
        node.probe = ray.remote(NodeProbe).options(num_cpus=0, scheduling_strategy=on_node(node_id)).remote()
        self._then(node.probe.facts.remote(), lambda *said: self._greeted(host, node, *said))

    def _greeted(
        self, host: str, node: _Node, found: list[Event], facts: Any, error: Exception | None
    ) -> None:
        if self._nodes.get(host) is not node:
            return
        if error is not None:
            self._lose(host, node, _why(error), found)
            return
        node.asked, node.reached = False, True
        self._console.narrate(f"node {host} is reached: {facts.cores} cores")
        found.append(HostReached(host, HostFacts(facts.machine, facts.cores)))

    def _pinged(self, host: str, node: _Node, found: list[Event], _: Any, error: Exception | None) -> None:
        if self._nodes.get(host) is not node:
            return
        node.asked = node.doubted = False
        if error is not None:
            self._lose(host, node, _why(error), found)

    def _passed(self, signum: int, found: list[Event], reply: Any, error: Exception | None) -> None:
        if error is None:  # else the node is lost, and its workers with it
            with_handler, without = reply
            found.append(PassedOn(signum, tuple(with_handler), tuple(without)))

    def _look(self, found: list[Event]) -> None:
        """Time has passed."""
        self._part()
        now = time.monotonic()
        for host, node in list(self._nodes.items()):
            if not node.asked:
                node.asked, node.since = True, now
                self._then(
                    node.probe.ping.remote(),
                    lambda *said, host=host, node=node: self._pinged(host, node, *said),
                )
                continue
            limit_s = self._limits.silence_s if node.reached else self._limits.start_s
            if node.reached and node.doubted:
                limit_s *= DOUBTED
            if now > node.since + limit_s:
                self._lose(host, node, f"nothing was heard of it for {limit_s:g} s", found)
        for number, worker in list(self._workers.items()):
            if worker.process is None and not worker.ended and now > worker.since + self._limits.start_s:
                why = (
                    f"was not begun: Ray has not started its actor within {self._limits.start_s:g} s; "
                    f"{describe_resources()}"
                )
                self._exit(number, worker, _FAILED, why, found)

    def _began(self, number: int, found: list[Event], process: Any, error: Exception | None) -> None:
        worker = self._workers.get(number)
        if worker is None:
            return
        if error is not None:
            if isinstance(error, RayTaskError) or not isinstance(error, RayActorError):
                why = f"could not begin in actor {worker.actor._actor_id.hex()}: {_cause_of(error)}"
                self._exit(number, worker, -worker.told or _FAILED, why, found)
            return  # of an actor that has died the call says more
        worker.process = process
        if not worker.told and not worker.ended:
            found.append(Started(number, process.pid))
        else:
            self._kill(worker)  # it began meanwhile

    def _replied(self, number: int, found: list[Event], reply: Any, error: Exception | None) -> None:
        worker = self._workers.get(number)
        if worker is None:
            return
        if isinstance(reply, Reply):
            self._output.put(number, RESULT, reply.data, lambda _: None)
            if reply.word:
                found.append(Said(number, reply.word))
            self._exit(number, worker, _FAILED if reply.word else 0, "", found)
        elif worker.told:
            self._exit(number, worker, -worker.told, "", found)
        else:
            why = f"has ended with its actor {worker.actor._actor_id.hex()}: {_why(error)}"
            self._exit(number, worker, _FAILED, why, found)

    def _exit(self, number: int, worker: _Worker, code: int, why: str, found: list[Event]) -> None:
        """A worker makes no call any more."""
        if not worker.ended:
            worker.ended = True
            if why:
                found.append(Said(number, line_of(Word(False, why))))
            found.append(Exited(number, code, told=bool(worker.told)))
        self._kill(worker)
        self._forget(number)
        found.append(Gone(number))

    def _lose(self, host: str, node: _Node, reason: str, found: list[Event]) -> None:
        if self._nodes.get(host) is not node:
            return
        there = [number for number, each in self._workers.items() if each.node == host]
        found.append(HostLost(host, tuple(there), reason))
        for number in there:
            self._kill(self._workers[number])
            self._forget(number)
        self._let_go(host)

    def _let_go(self, host: str) -> None:
        node = self._nodes.pop(host, None)
        if node is not None and node.probe is not None:
            self._leaving.append(_Leaving(node.probe, node.kills, time.monotonic() + _PART_S))
            self._part()

    def _part(self, *, wait: bool = False) -> None:
        """End probes that have done what they were told, or take too long."""
        left, self._leaving = self._leaving, []
        for each in left:
            left_s = max(0.0, each.until - time.monotonic())
            if _unanswered(each.kills, left_s if wait else 0.0) and left_s > 0 and not wait:
                self._leaving.append(each)
            else:
                ray.kill(each.probe)

    def _kill(self, worker: _Worker) -> None:
        """Also where it is stopped, and does not hear Ray."""
        ray.kill(worker.actor)
        node = self._nodes.get(worker.node)
        if worker.process is not None and node is not None and node.reached:
            node.kills = [*_unanswered(node.kills), node.probe.kill.remote(worker.process)]

    def _forget(self, number: int) -> None:
        del self._workers[number]
        self._output.end(number)


def _unanswered(calls: list[Any], timeout_s: float = 0.0) -> list[Any]:
    return list(ray.wait(calls, num_returns=len(calls), timeout=timeout_s)[1]) if calls else []


def _cause_of(error: Exception) -> str:
    """In one line, without the traceback that Ray adds."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return describe(cause) if isinstance(cause, BaseException) else _why(error)


def _why(error: Exception | None) -> str:
    """In one line, without the guesses that Ray adds."""
    text = " ".join(str(error).partition("Some common causes")[0].split()).rstrip(". ")
    return text if len(text) <= _MOST_WHY else f"{text[: _MOST_WHY - 4]} ..."

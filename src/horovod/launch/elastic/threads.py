"""An elastic job whose workers are calls of a function of the user's, each on a thread of its own.

The function starts a process, an actor or a container somewhere, and returns when that has ended. What is
to be done is decided by :class:`horovod.launch.elastic.policy.ElasticPolicy`; here its actions become threads
and events. Workers report in one of two ways: through the store of the job, as those of ``horovodrun``, or by
`ready`, for programs whose workers talk with the driver by a way of their own.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from horovod.bootstrap.store.membership import Answer, Assigned, Expected, HostUpdateResult, Report, Six
from horovod.bootstrap.store.server import StoreServer
from horovod.errors import LaunchError
from horovod.launch.contracts.events import Event, Exited, Finished, Gone, HostFacts, HostReached
from horovod.launch.course.course import Course, Source
from horovod.launch.driver.actions import Action, End, Forget, Log, Notify, Over, Reach, Spoil, Start, Tell
from horovod.launch.elastic.conversation import Conversation
from horovod.launch.elastic.discovery import HostDiscovery, Poller
from horovod.launch.elastic.growing import GrowingDriver
from horovod.launch.elastic.hosts import Hosts
from horovod.launch.elastic.places import places_of
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.launch.elastic.rules import ENDS, Phase, Rules
from horovod.launch.mailbox import Mailbox
from horovod.launch.phrases import counted

__all__ = ["Assignment", "Call", "SlotsTimeout", "ThreadJob", "WorkerResult"]

_log = logging.getLogger("horovod")


class SlotsTimeout(LaunchError):
    """There were not enough slots for too long."""


@dataclass(frozen=True)
class Assignment:
    """A worker, its slot (``index`` of ``host``) and its place in the world."""

    worker: int
    host: str
    index: int
    place: Six


class WorkerResult(NamedTuple):
    """The end of a worker. ``at``: in UNIX seconds."""

    exit_code: int
    at: float


Call = Callable[[Assignment, list[threading.Event]], tuple[int, float]]
"""Runs one worker until it ends, or until one of the events is set: that of the job, or its own."""


class _Calls:
    """Calls that run, each on a thread of its own.

    Args:
        call: runs one worker.
        shutdown: is set when all shall end.
    """

    def __init__(self, call: Call, shutdown: threading.Event) -> None:
        self._call = call
        self._shutdown = shutdown
        self._news: Mailbox[Event] = Mailbox()
        self._events: dict[int, threading.Event] = {}
        self.threads: dict[int, int] = {}
        """Identities of those that run."""
        self.ends: dict[int, WorkerResult] = {}
        self.fileno = self._news.fileno
        self.events = self._news.take
        self.close = self._news.close

    def reach(self, host: str) -> None:
        """Reached at once: how is up to the program."""
        self._news.put(HostReached(host, HostFacts("", 0)))

    def start(self, assignment: Assignment) -> None:
        self._events[assignment.worker] = threading.Event()
        name = f"worker {assignment.host}[{assignment.index}]"
        threading.Thread(target=self._work, args=(assignment,), name=name, daemon=True).start()

    def end(self, workers: Iterable[int]) -> None:
        for worker in workers:
            self._events[worker].set()

    def pass_on(self, signum: int) -> None: ...

    def finish(self, signum: int) -> None:
        """All of them have ended."""
        self._news.put(Finished(()))

    def kill(self) -> None: ...

    def _work(self, assignment: Assignment) -> None:
        worker = assignment.worker
        self.threads[worker] = threading.get_ident()
        try:
            exit_code, at = self._call(assignment, [self._shutdown, self._events[worker]])
            result = WorkerResult(int(exit_code), float(at))
        except BaseException:  # of the program's: the worker has failed, whatever it is
            _log.warning(
                "The worker in slot %d of %s failed.", assignment.index, assignment.host, exc_info=True
            )
            result = WorkerResult(1, time.time())
        self.ends[worker] = result
        del self.threads[worker]
        self._news.put(Exited(worker, result.exit_code))
        self._news.put(Gone(worker))


class ThreadJob:
    """
    Args:
        discovery: says which hosts there are; it is asked from the first `wait_for` on.
        slots_wait_s: how long enough slots are waited for.
        cooldown_s: range of the time that a failed host is left out; None: for ever.
        notify: is told of changed hosts (UNIX seconds, ``HostUpdateResult``) if there is no store. On a
            thread of the job's, which holds no lock.
        assigned: is told of each world before its workers are, by rank. It must not wait.
    """

    def __init__(
        self,
        discovery: HostDiscovery,
        slots_wait_s: float,
        cooldown_s: tuple[float, float] | None,
        notify: Callable[[int, int], None],
        assigned: Callable[[list[Assignment]], None],
    ) -> None:
        self._slots_wait_s = slots_wait_s
        self._notify = notify
        self._assigned = assigned
        self._poller = Poller(discovery)
        self._bell: Mailbox[None] = Mailbox()
        self._shutdown = threading.Event()
        self._changed = threading.Condition()  # guards all below; notified when any of it has changed
        self._hosts = Hosts(cooldown_s)
        self._discovered_once = False
        self._policy: ElasticPolicy | None = None
        self._course: Course | None = None
        self._calls: _Calls | None = None
        self._conversation: Conversation | None = None
        self._thread: threading.Thread | None = None
        self._slots: dict[int, tuple[str, int]] = {}
        self._reports: dict[int, int] = {}
        self._rounds: dict[int, int] = {}
        self._asking: set[int] = set()
        """Workers that have reported by `ready`, and wait for an answer."""
        self._told_world: tuple[int, tuple[int, ...]] = (0, ())
        self._begun = False  # a world was made known
        self._notices: list[tuple[int, int]] = []
        self._news_at = 0
        self._failure = ""
        self._over: Over | None = None

    # -- what the program does ------------------------------------------------------------------------------

    def wait_for(self, slots: int, hosts: int = 1) -> dict[str, int]:
        """Wait until there are so many slots, on so many hosts.

        Returns:
            The slots by host that there are then.

        Raises:
            SlotsTimeout: there are not, for too long.
            LaunchError: the hosts cannot be found out, or the job is over.
        """
        until = time.monotonic() + self._slots_wait_s
        with self._changed:
            self._ask_for_hosts()
            while True:
                self._raise_if_over()
                found = {name: len(self._hosts.slots(name)) for name in self._hosts.names}
                if sum(found.values()) >= slots and len(found) >= hosts:
                    return found
                left_s = until - time.monotonic()
                if left_s <= 0:
                    there = ",".join(f"{name}:{count}" for name, count in found.items()) or "none"
                    raise SlotsTimeout(
                        "Timed out waiting for minimum number of slots to become available: "
                        f"{counted(slots, 'slot')} on {counted(hosts, 'host')} needed, there: {there}, for "
                        f"{self._slots_wait_s:g} s (HOROVOD_ELASTIC_TIMEOUT)."
                    )
                self._changed.wait(left_s)

    def start(self, rules: Rules, call: Call, store: StoreServer | None) -> None:
        """Wait for the slots of the first world and start its workers.

        Args:
            rules: sizes and limits.
            call: runs one worker.
            store: where workers report; None: they do by `ready`.

        Raises: as `wait_for`.
        """
        with self._changed:
            if self._policy is not None:
                raise LaunchError("This elastic job is started already.")
            self.wait_for(rules.processes)
            now = time.monotonic()
            sources: list[tuple[Source, Callable[[float], None]]] = [
                (self._poller, self._hear_discovery),
                (self._bell, self._hear_bell),
            ]
            if store is not None:
                conversation = Conversation(store, lambda what: _log.warning("%s", what))
                self._conversation = conversation
                sources.append((conversation, lambda now: conversation.hear(policy, now)))
            self._policy = policy = ElasticPolicy(rules, self._hosts, now)
            self._calls = _Calls(call, self._shutdown)
            self._course = Course(
                GrowingDriver(policy, "", "", now),
                self._calls,
                None,
                None,
                self._carry_out,
                sources=sources,
                save=self._tell_world,
                lock=self._changed,
                after=self._after,
            )
            policy.discovered(self._hosts.discovered, now)
            self._act()
            while self._policy.phase is Phase.SLOTS:
                self._changed.wait()  # the driver gives up after a while
            if not self._begun:  # else it may be over already, and well
                self._raise_if_over()

    def ready(self, host: str, index: int) -> None:
        """The worker in a slot wants to be in the next world. On its own thread this returns when it has its
        place, or none; others see that by `place`. Of a slot without a worker this means nothing.
        """
        with self._changed:
            worker = self._worker_in(host, index)
            if worker is None or worker in self._asking or self._policy is None or self.finished():
                return
            report = Report(ready=False)
            if worker in self._rounds:
                report = Report(ready=True, round=self._rounds[worker], formed=True, synced=True)
            self._asking.add(worker)
            self._say(worker, report)
            self._act()
            if self._calls is not None and self._calls.threads.get(worker) == threading.get_ident():
                self._await_answer(worker)

    def place(self, host: str, index: int) -> Assignment | None:
        """Assignment of a slot in the present world; waits for the next one if its worker has reported."""
        with self._changed:
            worker = self._worker_in(host, index)
            if worker is not None:
                self._await_answer(worker)
            return next((each for each in self._world() if (each.host, each.index) == (host, index)), None)

    def world(self) -> list[Assignment]:
        """The present world, by rank; members that have ended included."""
        with self._changed:
            return self._world()

    def is_blacklisted(self, host: str) -> bool:
        """True while a host is left out."""
        with self._changed:
            return self._hosts.is_blacklisted(host)

    def has_worker(self, host: str, index: int) -> bool:
        """True while a worker runs in a slot."""
        with self._changed:
            return self._worker_in(host, index) is not None

    def publish(self, at: int, kind: int) -> bool:
        """News for rank 0 through the store; False: there is none."""
        with self._changed:
            if self._conversation is None or self._policy is None:
                return False
            self._policy.announced()
            self._conversation.publish(kind, at)
            return True

    def resume(self) -> None:
        """Wait until a world trains.

        Raises:
            LaunchError: the job is over.
        """
        with self._changed:
            while self._policy is not None and self._policy.phase not in (Phase.TRAINING, *ENDS):
                self._changed.wait()  # the driver gives up after a while
            self._raise_if_over()

    def stop(self, why: str = "") -> None:
        """End all workers. The job has failed if there is a reason. Does not wait; idempotent."""
        with self._changed:
            if self._policy is None:
                self._fail(why)
            elif self._policy.phase not in ENDS:
                self._policy.stop(why, time.monotonic())
                self._act()

    def finished(self) -> bool:
        """True once the job is over: workers have ended, or are told to."""
        return self._shutdown.is_set()

    def results(self) -> tuple[dict[tuple[str, int], WorkerResult], str]:
        """Wait until all workers have ended.

        Returns:
            How the workers of the last world have, by slot; and why the job has failed, if not because of
            them.

        Raises:
            LaunchError: the job was not started.
        """
        with self._changed:
            if self._policy is None:
                if not self.finished():
                    raise LaunchError("There are no results: this elastic job was not started.")
                return {}, self._failure
            while self._over is None:
                self._changed.wait()
            assert self._calls is not None
            ended = {self._slots[number]: self._calls.ends[number] for number in self._over.ranks}
            return ended, self._over.error

    # -- the course: one thread -----------------------------------------------------------------------------

    def _ask_for_hosts(self) -> None:
        if self._thread is None and not self.finished():
            self._poller.start()
            # A daemon, as those of the workers: a program that has had enough may end.
            self._thread = threading.Thread(target=self._run, name="elastic-driver", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for source in (self._poller, self._bell):
                selector.register(source.fileno(), selectors.EVENT_READ)
            while self._course is None and not self.finished():
                selector.select()
                with self._changed:
                    self._bell.take()
                    self._hear_discovery(time.monotonic())
                self._after()
        if self._course is not None:
            self._course.run()
        self._poller.close()
        self._bell.close()
        if self._calls is not None:
            self._calls.close()
        if self._conversation is not None:
            self._conversation.close()

    def _hear_bell(self, now: float) -> None:
        """A command has been carried out, so another time may be due."""
        self._bell.take()

    def _hear_discovery(self, now: float) -> None:
        for answer in self._poller.take():
            if answer.hosts is None:
                if self._policy is not None:
                    self._policy.discovery_failed(answer.failure, now)
                elif self._discovered_once:
                    _log.warning("%s The hosts stay what they were.", answer.failure)
                else:
                    self._fail(answer.failure)
                continue
            self._discovered_once = True
            if self._policy is not None:
                self._policy.discovered(answer.hosts, now, answer.passing)
            else:
                self._note(self._hosts.update(answer.hosts))
            self._changed.notify_all()

    def _note(self, kind: HostUpdateResult) -> None:
        if kind:
            # Who hears of it compares the time with that of the last one it knows.
            self._news_at = max(self._news_at + 1, int(time.time()))
            self._notices.append((self._news_at, int(kind)))

    def _tell_rank_0(self, at: int, kind: int) -> None:
        try:
            self._notify(at, kind)
        except Exception:  # a client of the program's may raise anything
            _log.warning("Rank 0 could not be told that the hosts have changed.", exc_info=True)

    # -- doing what the policy wants; all with the lock -----------------------------------------------------

    def _act(self) -> None:
        """Do what follows from a command."""
        assert self._course is not None
        self._course.act()
        self._make_known()
        self._bell.put(None)

    def _after(self) -> None:
        """A turn of the course is done."""
        with self._changed:
            self._make_known()
            notices, self._notices = self._notices, []
        for at, kind in notices:
            self._tell_rank_0(at, kind)

    def _make_known(self) -> None:
        if self._policy is not None and self._policy.phase in ENDS:
            self._shutdown.set()
        self._changed.notify_all()

    def _tell_world(self, actions: Sequence[Action]) -> None:
        policy = self._policy
        assert policy is not None
        if policy.world and (policy.round, policy.world) != self._told_world:
            self._told_world = (policy.round, policy.world)
            try:
                self._assigned(self._world())
                self._begun = True
            except Exception as error:
                _log.warning("The world could not be made known.", exc_info=True)
                policy.stop(f"The world could not be made known: {error}", time.monotonic())

    def _carry_out(self, action: Action) -> None:
        assert self._calls is not None
        match action:
            case Reach(host):
                self._calls.reach(host)
            case Start(worker, host, slot, place):
                self._slots[worker] = (host, slot)
                self._calls.start(Assignment(worker, host, slot, place))
            case End(workers):
                if self._conversation is not None:
                    self._conversation.announce_end(workers)
                self._asking.difference_update(workers)
                self._calls.end(workers)
            case Tell(worker, number, answer):
                if worker in self._asking:
                    self._answer(worker, answer)
                elif self._conversation is not None:
                    self._conversation.tell(worker, number, answer)
            case Forget(worker):
                self._asking.discard(worker)
                if self._conversation is not None:
                    self._conversation.forget(worker)
            case Notify(kind):
                if self._conversation is not None:
                    self._conversation.publish(kind)
                else:
                    self._note(HostUpdateResult(kind))
            case Spoil():
                if self._conversation is not None:
                    self._conversation.spoil(action)
            case Log(_, text):
                _log.info("%s", text)
            case Over():
                self._over = action
                self._shutdown.set()  # whoever waits for the results may ask whether it is over
                self._asking.clear()
                self._calls.finish(0)
            case _:
                pass  # nothing is kept on a host

    def _say(self, worker: int, report: Report) -> None:
        assert self._policy is not None
        number = self._reports[worker] = self._reports.get(worker, -1) + 1
        self._policy.said(worker, number, report, time.monotonic())

    def _answer(self, worker: int, answer: Answer) -> None:
        match answer:
            case Assigned(round_):
                self._rounds[worker] = round_
            case Expected():  # there is nothing that it could prepare here
                self._say(worker, Report(ready=True))
                return
            case _:
                assert self._calls is not None
                self._calls.end([worker])
        self._asking.discard(worker)

    def _await_answer(self, worker: int) -> None:
        while worker in self._asking:
            self._changed.wait()  # the driver gives up after a while

    def _world(self) -> list[Assignment]:
        if self._policy is None:
            return []
        seats = self._policy.seats()
        return [
            Assignment(worker, seat.host, seat.slot, place)
            for worker, seat, place in zip(self._policy.world, seats, places_of(seats), strict=True)
        ]

    def _worker_in(self, host: str, index: int) -> int | None:
        """The one that runs in a slot: the last one that was started there."""
        ended = {} if self._calls is None else self._calls.ends
        running = [n for n, slot in self._slots.items() if slot == (host, index) and n not in ended]
        return running[-1] if running else None

    def _fail(self, why: str) -> None:
        """Before the start."""
        self._failure = self._failure or why
        self._shutdown.set()
        self._changed.notify_all()
        self._bell.put(None)

    def _raise_if_over(self) -> None:
        if not self.finished():
            return
        error = self._failure if self._over is None else self._over.error
        if self._policy is not None and not error:
            error = self._policy.error
        raise LaunchError(error or "The elastic job is over: it was stopped, or its workers have ended.")

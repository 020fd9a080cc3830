"""The loop of a job: it hears what happens to processes, and carries out what the driver decides."""

from __future__ import annotations

import math
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from horovod.launch.contracts.errors import JobInterrupted
from horovod.launch.contracts.events import Event, Exited, Failed, HostLost, PassedOn
from horovod.launch.contracts.fleet import Processes
from horovod.launch.contracts.signals import Signals, signal_name
from horovod.launch.course.passing import Passing
from horovod.launch.driver.actions import Action, Finish, Kill, Say
from horovod.launch.driver.driver import Driver
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status

__all__ = ["Course", "Source"]


class Source(Protocol):
    """A mailbox of further news."""

    def fileno(self) -> int:
        """Readable when there is something."""


class Course:
    """One job while it runs. Everything is done on one thread; others leave things in mailboxes.

    Args:
        signals: to this process; None: they are not ours.
        console: of the user; None: nothing is told.
        carry_out: does an action that needs more than is here.
        passing: hands signals that end nothing to the workers, and tells what has become of them.
        status: shows how far the job is.
        sources: of further news, and what tells them to the driver.
        save: is told what is decided before it is carried out.
        clock: the time, in seconds.
        lock: held in each turn. Commands from other threads hold it, too, and call `act`.
        after: is called after each turn, without the lock.
    """

    def __init__(
        self,
        driver: Driver,
        processes: Processes,
        signals: Signals | None,
        console: Console | None,
        carry_out: Callable[[Action], None] = lambda action: None,
        *,
        passing: Passing | None = None,
        status: Status | None = None,
        sources: Sequence[tuple[Source, Callable[[float], None]]] = (),
        save: Callable[[Sequence[Action]], None] = lambda actions: None,
        clock: Callable[[], float] = time.monotonic,
        lock: AbstractContextManager[object] | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._driver = driver
        self._processes = processes
        self._signals = signals
        self._console = console
        self._carry_out = carry_out
        self._passing = passing
        if passing is None and signals is not None and console is not None:
            self._passing = Passing(signals, console, processes.pass_on)
        self._lock = lock or nullcontext()
        self._after = after
        self._status = status
        self._sources = tuple(sources)
        self._save = save
        self._clock = clock
        self._seen = 0  # signals

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing of the job runs, or ``until`` says so.

        Raises:
            JobInterrupted: a signal has ended the job, and what watches its processes with it.
            LaunchError: the processes can no longer be watched.
        """
        with selectors.DefaultSelector() as selector:
            descriptors = [source.fileno() for source, _ in self._sources]
            if self._signals is not None:
                descriptors.append(self._signals.fileno())
            for descriptor in (self._processes.fileno(), *descriptors):
                selector.register(descriptor, selectors.EVENT_READ)
            while not (self._driver.finished or until()):
                with self._lock:
                    wait_s = self._wait_s()
                ready = {key.fd for key, _ in selector.select(wait_s)}
                with self._lock:
                    self._turn(self._processes.fileno() in ready)
                self._after()

    def _turn(self, news: bool) -> None:
        driver, now = self._driver, self._clock()
        if self._signals is not None:
            self._signals.clear()
        for event in self._events() if news else ():
            self._hear(event, now)
        for _, hear in self._sources:
            hear(now)
        for signum in self._signals.arrived[self._seen :] if self._signals is not None else ():
            self._seen += 1
            driver.interrupt(signum, now)
        driver.settle(now)
        self.act()
        if self._passing is not None:
            self._passing.forward(driver.running, ending=driver.ending)
        if self._status is not None:
            self._status.reached = driver.reached
            self._status.running, self._status.ended, self._status.ending = driver.progress
            self._status.instead = driver.describe(now)

    def _events(self) -> Sequence[Event]:
        events = self._processes.events()
        error = next((each.error for each in events if isinstance(each, Failed) and each.unwatched), None)
        if error is None:
            return events
        if self._signals is None or not self._signals.arrived:
            raise error
        signum = self._signals.arrived[0]  # batch systems end both
        elapsed_s = self._clock() - self._driver.began_at
        raise JobInterrupted(
            f"{signal_name(signum)} ended the job after {elapsed_s:.1f} s, and the process that watched the "
            "ranks has ended as well; all ranks were killed.",
            signum=signum,
        ) from error

    def _hear(self, event: Event, now: float) -> None:
        match event:
            case PassedOn() if self._passing is not None:
                self._passing.hear(event)
            case Exited(number) if self._passing is not None:
                self._passing.leave((number,))
            case HostLost(_, numbers) if self._passing is not None:
                self._passing.leave(numbers)
        self._driver.hear(event, now)

    def act(self) -> None:
        """Carry out what the driver wants."""
        actions, self._driver.actions = self._driver.actions, []
        self._save(actions)
        for action in actions:
            match action:
                case Say(text, loud) if self._console is not None:
                    (self._console.tell if loud else self._console.narrate)(text)
                case Finish(signum):
                    if signum == signal.SIGINT and self._console is not None:
                        self._console.tracebacks.leave_out_interrupts()
                    self._processes.finish(signum)
                case Kill():
                    self._processes.kill()
                case _:
                    self._carry_out(action)

    def _wait_s(self) -> float | None:
        if self._driver.actions:
            return 0.0
        now = self._clock()
        due = self._driver.due(now)
        return None if due == math.inf else max(0.0, due - now)

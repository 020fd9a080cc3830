"""The part of this process in an elastic job: what it tells the driver, and what it is told.

It is made at the first ``init()`` and lives as long as the process: worlds come and go.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping

from horovod.bootstrap.place.starter import tell_process
from horovod.bootstrap.place.store_address import read_store
from horovod.bootstrap.store.meeting import key_of_store
from horovod.bootstrap.store.membership import (
    WORKER_VARIABLE,
    Answer,
    Assigned,
    Dismissed,
    Expected,
    Membership,
    Report,
    place_variables,
)
from horovod.config import Config
from horovod.errors import ConfigError, HorovodInternalError, RendezvousError

__all__ = ["Part", "part_of"]


def part_of(config: Config, environ: Mapping[str, str]) -> Part | None:
    """Make the part of this process; None: its job is not elastic, or no driver of ours has started it."""
    if not config.elastic or not environ.get(WORKER_VARIABLE):
        return None
    if not read_store(environ):
        raise ConfigError(
            f"{WORKER_VARIABLE} is set, but nothing says where the driver of the elastic job is. horovodrun "
            "sets both: unset it, and HOROVOD_ELASTIC, to run alone.",
            variable=WORKER_VARIABLE,
        )
    key = key_of_store(read_store(environ), config.job_id, environ)
    return Part(Membership(environ, key, config.job_id, config.init_timeout_s))


class Part:
    """
    Attributes:
        membership: the conversation with the driver.
        round: the world that this process was placed in last; 0: none.
        news: news of the hosts with a lower number were made before that.
        in_step: all members of that world had equal states when they left the one before.
        synced: the state of this process is that of the training; set by who keeps it.
    """

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.round = 0
        self.news = 0
        self.in_step = False
        self.synced = False
        self._arrived = False
        self._marks: list[tuple[str, float]] = []
        self._report = Report(ready=True)

    def enter(self) -> Assigned | Expected:
        """Ask for a place; waits until there is one. At the first time only, it may be one to prepare for.

        Raises:
            SystemExit: the job needs this process no more; the status is that of success.
            RendezvousError: the driver is gone.
        """
        if not self._arrived:
            tell_process()
            answer = self._ask(Report(ready=False))
            self._arrived = True
            return answer
        return self.ready()

    def mark(self, phase: str) -> None:
        """A phase of the way to the next world is over."""
        self._marks.append((phase, time.monotonic()))

    def took(self) -> dict[str, float]:
        """The seconds of each phase since the first mark, which begins them all; forgets them."""
        marks, self._marks = self._marks, []
        took: dict[str, float] = {}
        for (_, before), (phase, at) in itertools.pairwise(marks):
            took[phase] = took.get(phase, 0.0) + at - before
        return took

    def ready(self) -> Assigned:
        """This process has all that it needs: wait for its place in the next world. Raises as `enter`."""
        answer = self._ask(self._report._replace(synced=self.synced))
        if not isinstance(answer, Assigned):
            raise RendezvousError("The driver told a process that is ready to prepare itself.")
        return answer

    def formed(self) -> None:
        """The world stands."""
        self.mark("form")
        self._report = Report(ready=True, round=self.round, formed=True)

    def spoiled(self, error: HorovodInternalError) -> None:
        """The world could not be formed."""
        because = getattr(error, "rank", None)
        missing = getattr(error, "missing", ())
        if because is None and missing:
            because = missing[0]
        self._report = Report(True, self.round, failed=True, why=str(error), because=because)

    def left(self, failure: BaseException | None, because: int | None) -> None:
        """The world has been left, after a failure of it or of its rank ``because``."""
        if failure is not None:
            self._report = Report(True, self.round, True, True, str(failure), because)

    def _ask(self, report: Report) -> Assigned | Expected:
        answer: Answer = self.membership.report(report)
        self.mark("place")
        if isinstance(answer, Dismissed):
            raise SystemExit(0)
        if isinstance(answer, Assigned):
            self.round, self.news, self.in_step = answer.round, answer.news, answer.in_step
            self._report = Report(ready=True, round=self.round)
            for name, text in place_variables(answer.place).items():
                os.putenv(name, text)  # os.environ keeps what the process began with
        return answer

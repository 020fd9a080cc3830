"""The driver's side of the conversation that :mod:`horovod.bootstrap.store.membership` describes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from horovod.bootstrap.store.membership import (
    COUNT,
    ENDING,
    LEAVING,
    NEWS,
    RESUMED,
    SAID,
    TOLD,
    Answer,
    Assigned,
    HostUpdateResult,
    Leaving,
    Report,
    Resumed,
    from_json,
    to_json,
    told_key,
)
from horovod.bootstrap.store.rounds import ROUNDS
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.launch.driver.actions import Spoil
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.launch.mailbox import Mailbox
from horovod.launch.phrases import counted
from horovod.runtime.ending import harmless

__all__ = ["Conversation"]

_MOST_COMPLAINTS = 3
"""Reports that make no sense and are told one by one; of further ones how many there were is told."""

_COMPLAINTS_S = 60.0

_NONSENSE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class Conversation:
    """Hears what workers say through the store of their job, and answers there.

    Args:
        store: of the job.
        complain: is told of reports that make no sense, in sentences: a few, however many there are.
    """

    def __init__(self, store: StoreServer, complain: Callable[[str], None]) -> None:
        self._store = store
        self._complain = complain
        self._reports: Mailbox[tuple[str, str, Any]] = Mailbox()
        self._news: list[tuple[int, int]] = []
        self._counts: dict[int, int] = {}  # how many reports each worker has begun to make
        self._complaints = 0
        self._untold = 0
        self._tell_at = -math.inf
        for prefix in (SAID, LEAVING, RESUMED, COUNT):
            store.observe(prefix, partial(self._hear, prefix))

    def fileno(self) -> int:
        """Readable while there is a report."""
        return self._reports.fileno()

    def hear(self, driver: ElasticPolicy, now: float) -> None:
        """Tell the driver what is new. Nonsense is told and ignored: who sends it has the key, but is not one
        of ours.
        """
        for prefix, rest, value in self._reports.take():
            try:
                self._pass_on(driver, prefix, rest, value, now)
            except _NONSENSE as error:
                self._complaints += 1
                if self._complaints <= _MOST_COMPLAINTS:
                    self._complain(
                        f"a report that makes no sense, {prefix + rest[:60]!r}, is ignored: {error!r:.200}"
                    )
                else:
                    self._untold += 1
        if self._untold and now >= self._tell_at:
            self._tell_at = now + _COMPLAINTS_S
            self._count_complaints()

    def _pass_on(self, driver: ElasticPolicy, prefix: str, rest: str, value: Any, now: float) -> None:
        """Raises one of `_NONSENSE`, if it is none of ours."""
        name, _, number = rest.partition("/")
        worker = int(name)
        if prefix == COUNT:
            self._counts[worker] = int(value)
        elif prefix == LEAVING:
            leaving = from_json(Leaving, value)
            driver.leaving(worker, Leaving(harmless(leaving.why), leaving.host), now)
        elif prefix == RESUMED:
            driver.resumed(worker, from_json(Resumed, value))
        elif int(number) >= self._counts.get(worker, 0):
            # Taken for a report, it would be the last one of this worker: later ones have lower numbers.
            raise ValueError("the worker has not counted so far")
        else:
            driver.said(worker, int(number), from_json(Report, value), now)

    def _count_complaints(self) -> None:
        if self._untold:
            more = counted(self._untold, "further report")
            self._untold = 0
            self._complain(f"{more} that made no sense {'was' if more.startswith('1 ') else 'were'} ignored")

    def tell(self, worker: int, number: int, answer: Answer) -> None:
        """Answer a report."""
        self._store.put(told_key(worker, number), to_json(answer))
        if isinstance(answer, Assigned) and answer.round > 2:
            self._store.forget(f"{ROUNDS}{answer.round - 2}/")  # nobody looks there any more

    def publish(self, kind: int, at: int | None = None) -> int:
        """News of the hosts for rank 0 (``HostUpdateResult``); returns their time, in UNIX seconds."""
        # Who hears of it compares the time with that of the last one it knows.
        before = self._news[-1][0] if self._news else 0
        at = max(before + 1, int(time.time()) if at is None else at)
        self._store.put(f"{NEWS}{len(self._news)}", {"at": at, "kind": kind})
        self._news.append((at, kind))
        return at

    @property
    def news(self) -> Sequence[tuple[int, int]]:
        """All that were published: when, and which kind."""
        return tuple(self._news)

    def publish_again(self, news: Sequence[tuple[int, int]], count: int) -> None:
        """Repeat in a new store the news that another driver has published, and make up for the rest of the
        ``count`` that it wanted to publish.
        """
        for at, kind in news:
            self.publish(kind, at)
        for _ in range(count - len(news)):
            self.publish(HostUpdateResult.mixed)

    def spoil(self, spoil: Spoil) -> None:
        """Nobody waits for that world any more."""
        cause = Cause(spoil.why, (spoil.rank,), rank=spoil.rank, host=spoil.host)
        self._store.fail(f"{ROUNDS}{spoil.round}/", cause)

    def announce_end(self, workers: Iterable[int]) -> None:
        """The signal that comes to them is ours."""
        for worker in workers:
            self._store.put(f"{ENDING}{worker}", True)

    def forget(self, worker: int) -> None:
        """A worker has ended: nobody reads any more what was said."""
        self._counts.pop(worker, None)
        for below in (SAID, TOLD):
            self._store.forget(f"{below}{worker}/")

    def close(self) -> None:
        """Idempotent."""
        self._count_complaints()
        self._reports.close()

    def _hear(self, prefix: str, rest: str, value: Any) -> None:
        self._reports.put((prefix, rest, value))

"""Watching a job until nothing of it runs: who failed first, and when the others are ended."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from horovod.launch.console import Console
from horovod.launch.hosts import Slot
from horovod.launch.launcher import Event, Exited, Finished, HostLost, LeftBehind, Refused, Started, Workers
from horovod.launch.status import Status

__all__ = ["Outcome", "Signals", "describe_exit", "signal_name", "supervise"]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REORDERED_S = 1.0  # news of hosts may be so late
_PATIENCE_S = 1.0  # of the user, before being told why it takes longer


@dataclass(frozen=True)
class Outcome:
    """How a job ended. At most one of `failure`, `refused` and `signum` is set: what came first. None of
    them is if a host was lost before.
    """

    elapsed_s: float
    """From the start to that first cause, or to the end if all went well."""
    failure: Exited | None = None
    refused: Refused | None = None
    signum: int | None = None
    ended: int = 0
    """Ranks that had not ended when the first cause came, and were ended for it."""
    lost: tuple[HostLost, ...] = ()
    survivors: tuple[int, ...] = ()


class Signals:
    """Collects SIGINT, SIGTERM and SIGHUP while it is entered; each arrival makes `fileno` readable.

    Signals that were ignored before (``nohup``, a shell's background job) stay ignored. Outside the main
    thread Python cannot handle signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self._previous: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._previous_wakeup = -1

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        """Make `fileno` unreadable until the next signal."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass  # nothing arrived

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for signum in _FORWARDED:
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._arrive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._read)
        os.close(self._write)

    def _arrive(self, signum: int, frame: FrameType | None) -> None:
        self.arrived.append(signum)


def supervise(
    slots: Sequence[Slot],
    workers: Workers,
    signals: Signals,
    console: Console,
    status: Status | None = None,
) -> Outcome:
    """Wait until nothing of the job runs.

    The first rank that fails, or the first signal to this process, ends the others; a rank that succeeds
    early does not. A second signal kills them without further waiting.

    Raises:
        LaunchError: the ranks can no longer be watched.
    """
    return _Watch(slots, workers, signals, console, status).run()


class _Watch:
    def __init__(
        self,
        slots: Sequence[Slot],
        workers: Workers,
        signals: Signals,
        console: Console,
        status: Status | None,
    ) -> None:
        self._status = status
        self._hosts = {slot.rank: slot.hostname for slot in slots}
        self._workers = workers
        self._signals = signals
        self._console = console
        self._started = time.monotonic()
        self._running: set[int] = set()
        self._not_ended = {slot.rank for slot in slots}
        self._signals_seen = 0
        self._failure: Exited | None = None
        self._refused: Refused | None = None
        self._signum: int | None = None
        self._lost: list[HostLost] = []
        self._ended = 0
        self._caused_at: float | None = None
        self._explained = False

    def run(self) -> Outcome:
        finished: Finished | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._workers.fileno(), selectors.EVENT_READ)
            selector.register(self._signals.fileno(), selectors.EVENT_READ)
            while finished is None:
                for key, _ in selector.select(self._patience_s()):
                    if key.fd == self._signals.fileno():
                        self._signals.clear()
                    else:
                        for event in self._workers.events():
                            finished = self._take(event) or finished
                self._forward_signals()
                if self._status is not None:
                    self._status.running = len(self._running)
                    self._status.ended = len(self._hosts) - len(self._not_ended)
                    self._status.ending = self._has_cause()
                self._explain_waiting()
        return Outcome(
            elapsed_s=(self._caused_at or time.monotonic()) - self._started,
            failure=self._failure,
            refused=self._refused,
            signum=self._signum,
            ended=self._ended,
            lost=tuple(self._lost),
            survivors=finished.survivors,
        )

    def _take(self, event: Event) -> Finished | None:
        match event:
            case Started(rank, pid):
                self._running.add(rank)
                self._console.narrate(f"rank {rank} runs as process {pid} on {self._hosts[rank]}")
            case Exited(rank, exit_code):
                self._running.discard(rank)
                self._not_ended.discard(rank)
                if exit_code != 0 and not self._has_cause():
                    self._failure = event
                    self._end(signal.SIGTERM)
                elif self._is_earlier_cause(event):
                    self._failure = event
                self._console.narrate(f"rank {rank} {describe_exit(exit_code)}")
            case Refused():
                # Who reports it has ended the ranks of its host that were started before.
                if not self._has_cause():
                    self._refused = event
                    self._end(signal.SIGTERM)
            case HostLost(host, ranks, reason):
                self._running.difference_update(ranks)
                self._not_ended.difference_update(ranks)
                self._lost.append(event)
                self._console.narrate(f"host {host} is lost: {reason}")
                if not self._has_cause():
                    self._end(signal.SIGTERM)
            case LeftBehind(processes):
                left = _count(processes, "process", "processes")
                self._console.tell(f"ending {left} that the ranks left behind")
            case Finished():
                return event
        return None

    def _forward_signals(self) -> None:
        for signum in self._signals.arrived[self._signals_seen :]:
            self._signals_seen += 1
            if self._signals_seen > 1:
                self._workers.kill()
                self._console.tell(f"second signal ({signal_name(signum)}): killing what still runs")
            elif self._has_cause():
                self._console.narrate(f"{signal_name(signum)} received; the ranks are being ended already")
            else:
                self._signum = signum
                self._end(signum)
                self._console.narrate(f"{signal_name(signum)} received, forwarded to all ranks")

    def _end(self, signum: int) -> None:
        self._workers.end(signum)
        self._ended = len(self._not_ended)
        self._caused_at = time.monotonic()

    def _is_earlier_cause(self, event: Exited) -> bool:
        """Whether this rank failed before the one that is thought to be the first. News of different hosts
        come in any order: a rank that lost its peer may be heard before the peer's end. Nobody of us sends
        SIGKILL so early.
        """
        return (
            event.exit_code == -signal.SIGKILL
            and self._failure is not None
            and self._failure.exit_code > 0
            and self._signals_seen == 0
            and time.monotonic() < (self._caused_at or 0.0) + _REORDERED_S
        )

    def _has_cause(self) -> bool:
        return self._caused_at is not None

    def _patience_s(self) -> float | None:
        if self._caused_at is None or self._explained:
            return None
        return max(0.0, self._caused_at + _PATIENCE_S - time.monotonic())

    def _explain_waiting(self) -> None:
        if self._patience_s() != 0.0 or not self._running:
            return
        self._explained = True
        ranks = ", ".join(str(rank) for rank in sorted(self._running)[:8])
        more = ", ..." if len(self._running) > 8 else ""
        self._console.tell(
            f"waiting for {_count(len(self._running), 'rank', 'ranks')} ({ranks}{more}) to end; "
            "SIGKILL follows 5 s after the first signal"
        )


def describe_exit(exit_code: int) -> str:
    """What happened to a process, as the end of a sentence; `exit_code` is negative for a signal."""
    if exit_code < 0:
        return f"was killed by {signal_name(-exit_code)} (status {128 - exit_code})"
    return f"exited with status {exit_code}"


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"

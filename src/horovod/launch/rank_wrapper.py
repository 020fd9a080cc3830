"""One rank under another launcher. Usage: ``python -m`` this module ``LAUNCHER CARD command ...``

The program of a `ProgramFleet` starts this in place of the command. It finds out which rank it is, asks the
launching process (`external.fleet`) for its place, runs the command as ``horovodrun`` would on one machine,
and reports how that ended. It ends the rank when the job has ended elsewhere, and when the launching process
cannot be reached any more: nobody needs to trust that the other launcher does. What the two say to each other
is in `messages`.
"""

from __future__ import annotations

import base64
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType

from horovod.bootstrap.place import launchers
from horovod.bootstrap.place.cores import usable_cores
from horovod.bootstrap.place.store_address import read_store
from horovod.bootstrap.place.topology import checked_rank
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.errors import ConfigError, HorovodError, LaunchError, RendezvousError, StoreTimeout
from horovod.launch.agent.processes import survive
from horovod.launch.contracts.errors import exit_status
from horovod.launch.contracts.fleet import FleetPlan, FleetWorker
from horovod.launch.contracts.registry import LAUNCHERS
from horovod.launch.contracts.signals import Signals
from horovod.launch.course.course import Course
from horovod.launch.course.failures import command_not_started
from horovod.launch.course.passing import Passing
from horovod.launch.driver.fixed import FixedDriver, Outcome
from horovod.launch.environment import compute_threads, slot_environment, start_timeout_s
from horovod.launch.external import messages
from horovod.launch.external.key import find_key, name_on
from horovod.launch.external.messages import (
    CALL,
    RESULT,
    RankArrival,
    RankEnd,
    RankInstructions,
    fetch,
    leave,
    said,
    understood,
)
from horovod.launch.launchers.local import LocalFleet
from horovod.launch.output.console import Console
from horovod.launch.output.streams import Output
from horovod.launch.run import drained

__all__ = ["main", "rank_and_size"]

_BEAT_S = 1.0
_LONG_S = 3600.0
_NEWS_S = 1.0  # that the job is over may come so late
# Descriptors that MPI's libraries find by these variables.
_DESCRIPTORS = ("PMI_FD", "PMIX_FD")


def rank_and_size(launcher: str, environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank of this process and size of its world, by the variables of `launcher`.

    Raises:
        ConfigError: they are not there, or make no sense.
    """
    variables = LAUNCHERS[launcher].rank_variables
    for variable in variables:
        known = next(each for each in launchers.LAUNCHERS if each.rank == variable)
        size = next((name for name in known.sizes if environ.get(name)), None)
        if environ.get(known.rank) and size is not None:
            return checked_rank(environ, known.rank, size)
    wanted = ", ".join(variables)
    raise ConfigError(f"{launcher} has not said which rank this is: none of {wanted} is set with its size.")


def main(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run one rank. Returns the exit status, that of the command."""
    survive()
    launcher, card, command = words[0], words[1], tuple(words[2:])
    console = Console()
    try:
        rank, size = rank_and_size(launcher, environ)
        signals = _FirstSignal()
        key = find_key(card, environ, launcher)
        # From here on it goes to our own children only. The job's name comes with the card: Hydra takes the
        # variable for one of a batch system's, and keeps it to itself.
        ours = {**environ, SECRET_VARIABLE: key.hex(), "HOROVOD_JOB_ID": name_on(card)}
        with signals, _connect(ours, rank, key) as client:
            place = _place(client, rank, size, _start_timeout_s(ours))
            report = _run(client, place, command, ours, signals, console)
            return _report(client, rank, report, place.patience_s + _NEWS_S)
    except HorovodError as error:
        console.tell(str(error))
        return exit_status(error)


class _FirstSignal(Signals):
    """The first signal decides: a launcher that ends a job may send several, and we one of our own."""

    def _arrive(self, signum: int, frame: FrameType | None) -> None:
        if not self.arrived:
            super()._arrive(signum, frame)

    def come_from_afar(self, signum: int) -> None:
        """As if it were sent to this process, also if that ignores it. From any thread."""
        self._arrive(signum, None)
        os.write(self._write, b"\0")

    def insist(self) -> None:
        """As if a second signal had come: what still runs is killed. From any thread."""
        self.arrived.append(signal.SIGKILL)
        os.write(self._write, b"\0")

    def pass_from_afar(self, signum: int) -> None:
        """The same for one that ends nothing."""
        self.passing.append(signum)
        os.write(self._write, b"\0")


class _Passing(Passing):
    """Tells the launching process, which knows of all ranks."""

    def __init__(
        self, signals: Signals, console: Console, pass_on: Callable[[int], None], lifeline: _Lifeline
    ) -> None:
        super().__init__(signals, console, pass_on)
        self._lifeline = lifeline

    def tell(self, signum: int, got: Sequence[int], without: Sequence[int]) -> None:
        self._lifeline.tell_passed(signum, handled=not without)


class _Lifeline:
    """Watches the connection to the launching process while the rank runs, in a thread of its own: that uses
    the client alone until ``close``.
    """

    def __init__(self, client: StoreClient, rank: int, silence_s: float, signals: _FirstSignal) -> None:
        self._client = client
        self._silence_s = silence_s
        self._signals = signals
        self._rank = rank
        self._stop_read, self._stop = os.pipe()
        self._to_say: deque[tuple[str, object]] = deque()
        self._heard = 0  # signals that are to be passed on
        self._passed = 0
        self.told = False  # that the job is over
        self.lost = False
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._stop)
        self._thread.join()
        os.close(self._stop_read)

    def tell_passed(self, signum: int, *, handled: bool) -> None:
        """Say within a second what has become of a signal. From any thread."""
        key = f"{messages.PASSED}{self._rank}/{self._passed}"
        self._passed += 1
        self._to_say.append((key, {"signum": signum, "handled": handled}))

    def _watch(self) -> None:
        try:
            beats, beat_at, heard_at = 0, 0.0, time.monotonic()
            self._await_next_signal()
            while messages.JOB not in self._client.aborted:
                self._look_for_signals()
                self._say()
                now = time.monotonic()
                if now >= beat_at:
                    beats, beat_at = beats + 1, now + _BEAT_S
                    if self._beat(beats, give_up=now > heard_at + self._silence_s):
                        heard_at = time.monotonic()
                wait_s = max(0.0, beat_at - time.monotonic())
                ready, _, _ = select.select([self._client.fileno(), self._stop_read], [], [], wait_s)
                if self._stop_read in ready:
                    self._client.unwatch(f"{messages.SIGNAL}{self._heard}/")
                    self._say()
                    return
                if ready:
                    self._client.pump()
            self._client.set(f"{messages.HEARD}{self._rank}", True)
            signum = messages.signal_of(self._client.get(messages.OVER, 0.0))
        except StoreTimeout:  # another rank has vanished, and nobody has decided yet
            signum = signal.SIGTERM
        except RendezvousError:
            self.lost = True
            signum = signal.SIGTERM
        self.told = True
        self._signals.come_from_afar(signum)  # `supervise` does the rest
        if not self.lost:
            self._await_impatience()

    def _await_impatience(self) -> None:
        """Until the rank has ended, or has to at once."""
        scope = f"{messages.KILL}{self._rank}/"
        try:
            self._watch_scope(scope)
            while scope not in self._client.aborted:
                ready, _, _ = select.select([self._client.fileno(), self._stop_read], [], [])
                if self._stop_read in ready:
                    self._client.unwatch(scope)
                    return
                self._client.pump()
        except RendezvousError:
            return  # the launching process has ended: the rank follows within seconds
        self._signals.insist()

    def _say(self) -> None:
        while self._to_say:
            self._client.set(*self._to_say.popleft())

    def _look_for_signals(self) -> None:
        while cause := self._client.aborted.pop(scope := f"{messages.SIGNAL}{self._heard}/", None):
            self._client.unwatch(scope)
            self._heard += 1
            self._await_next_signal()
            signum = messages.signal_in(cause)
            if signum is not None:
                self._signals.pass_from_afar(signum)

    def _await_next_signal(self) -> None:
        self._watch_scope(f"{messages.SIGNAL}{self._heard}/")

    def _watch_scope(self, scope: str) -> None:
        try:
            self._client.watch(scope)
        except RendezvousError:
            if scope not in self._client.aborted:  # else it has come already
                raise

    def _beat(self, number: int, *, give_up: bool) -> bool:
        """Give a sign of life; whether the other side did. A machine that is off or cut off says nothing, and
        one that is slow says it late.
        """
        try:
            self._client.set(f"{messages.BEAT}{self._rank}", number)
        except RendezvousError as error:
            if give_up or not isinstance(error.__cause__, TimeoutError):
                raise
            return False
        return True


def _connect(environ: Mapping[str, str], rank: int, key: bytes) -> StoreClient:
    addresses = read_store(environ)
    if not addresses:
        raise ConfigError(
            f"Rank {rank} on host {socket.gethostname()} was not told where horovodrun is: its launcher did "
            "not pass HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT on.",
            variable="HOROVOD_GLOO_RENDEZVOUS_ADDR",
        )
    identity = f"rank {rank} on host {socket.gethostname()}"
    return StoreClient(addresses, key, _start_timeout_s(environ), identity, job=environ["HOROVOD_JOB_ID"])


def _start_timeout_s(environ: Mapping[str, str]) -> float:
    return start_timeout_s({}, environ)


def _place(client: StoreClient, rank: int, size: int, timeout_s: float) -> RankInstructions:
    client.watch(messages.JOB, rank, socket.gethostname())
    here = RankArrival(socket.gethostname(), size)
    first, other = client.compare_and_set(f"{messages.ARRIVED}{rank}", None, said(here))
    if not first:
        host = understood(RankArrival, other, f"another process of rank {rank}").host
        raise LaunchError(f"There are two processes of rank {rank}, on {host} and {here.host}.")
    return understood(
        RankInstructions, client.get(f"{messages.PLACE}{rank}", timeout_s), "the launching process"
    )


def _run(
    client: StoreClient,
    place: RankInstructions,
    command: tuple[str, ...],
    environ: Mapping[str, str],
    signals: _FirstSignal,
    console: Console,
) -> RankEnd:
    slot = place.slot
    environment = dict(environ)
    threads = compute_threads(environ, slot.local_size, usable_cores()[0])
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    call = fetch(client, CALL, place.call_parts, "the launching process")
    plan = FleetPlan(
        command,
        environment,
        (memoryview(call),) if call else (),
        call_is_input=place.call_is_input,
        stdin=_fed(environ, slot.rank) if place.feeds else -1,
    )
    rank = FleetWorker(slot.rank, slot.hostname, slot_environment(slot), slot.rank)
    directory = Path(place.directory) if place.directory else None
    shown = None if place.shown else frozenset[int]()
    output = Output(slot.size, console, timestamps=place.timestamps, directory=directory, shown=shown)
    descriptors = [int(environ[name]) for name in _DESCRIPTORS if environ.get(name, "").isdecimal()]
    with (
        closing(_Lifeline(client, slot.rank, place.silence_s, signals)) as lifeline,
        drained(output, signals),
        closing(LocalFleet(None, output, descriptors=descriptors)) as fleet,
    ):
        fleet.serve(plan, None)
        fleet.start([rank])
        output.start()
        if plan.stdin >= 0:
            os.close(plan.stdin)  # the rank's alone: when it closes that, no more is fetched
        passing = _Passing(signals, console, fleet.pass_on, lifeline)
        driver = FixedDriver({slot.rank: slot.hostname}, 1, 0.0, time.monotonic(), speaks=False)
        Course(driver, fleet, signals, console, passing=passing).run()
    outcome = driver.outcome(time.monotonic())
    if lifeline.lost:
        raise LaunchError(f"rank {slot.rank} was ended: the connection to horovodrun is lost.")
    report = _how_it_ended(outcome, command, slot.hostname, output.tail(slot.rank))
    result = output.results().get(slot.rank, b"")
    parts = leave(client, f"{RESULT}{slot.rank}/", [result])
    by_launcher = outcome.signum is not None and not lifeline.told
    return replace(report, told=lifeline.told, ended_by_launcher=by_launcher, result_parts=parts)


def _fed(environ: Mapping[str, str], rank: int) -> int:
    """A descriptor with what the launching process sends for the standard input of this rank; a thread with a
    connection of its own fetches it, as the rank takes it.
    """
    read_end, write_end = os.pipe()
    client = _connect(environ, rank, bytes.fromhex(environ[SECRET_VARIABLE]))

    def fetch_all() -> None:
        number = 0
        try:
            with client, open(write_end, "wb", buffering=0) as sink:
                while data := _piece(client, number):
                    while data:
                        data = data[sink.write(data) or 0 :]
                    client.set(f"{messages.TOOK}{number}", True)
                    number += 1
        except (OSError, RendezvousError, ValueError):
            pass  # the rank reads no more, or the launching process is gone

    threading.Thread(target=fetch_all, name="standard input", daemon=True).start()
    return read_end


def _piece(client: StoreClient, number: int) -> bytes:
    while True:
        try:
            return base64.b64decode(client.get(f"{messages.INPUT}{number}", _LONG_S), validate=True)
        except StoreTimeout:
            continue  # nothing was typed


def _how_it_ended(outcome: Outcome, command: tuple[str, ...], host: str, tail: Sequence[str]) -> RankEnd:
    if outcome.refused is not None:
        refusal = command_not_started(outcome.refused, command[0], host)
        return RankEnd(refusal.exit_code, str(refusal), refused=True)
    exit_code, text, because = 0, "", None
    if outcome.failure is not None:
        assert outcome.failure.exit_code is not None  # there is no other rank to name
        exit_code, text, because = (
            outcome.failure.exit_code,
            outcome.failure.text,
            outcome.failure.because,
        )
    elif outcome.signum is not None:
        exit_code = -outcome.signum
    return RankEnd(exit_code, text, because, tuple(tail))


def _report(client: StoreClient, rank: int, report: RankEnd, patience_s: float) -> int:
    """Say how it ended. The other launcher may end all ranks when one has failed: so that waits until the
    job is over, or the others have had the time to notice by themselves.
    """
    client.set(f"{messages.ENDED}{rank}", said(report))
    exit_code = report.exit_code
    if exit_code != 0 and not report.told:
        deadline = time.monotonic() + patience_s
        while messages.JOB not in client.aborted and (left_s := deadline - time.monotonic()) > 0.0:
            if select.select([client.fileno()], [], [], left_s)[0]:
                client.pump()
    client.unwatch(messages.JOB)
    return 128 - exit_code if exit_code < 0 else exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

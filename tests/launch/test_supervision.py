"""What happens when ranks fail, when the launcher is told to end, and when it is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.launch.launching import PYTHON, WAIT, Watched, horovodrun, running

from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    Failed,
    Finished,
    HostLost,
    Placed,
    Said,
    Started,
    Stopped,
)
from horovod.launch.contracts.signals import Signals
from horovod.launch.course.course import Course
from horovod.launch.course.failures import raise_for
from horovod.launch.driver.causes import RankOutcome
from horovod.launch.driver.fixed import FixedDriver, Outcome
from horovod.launch.output.console import Console
from horovod.launch.placement.hosts import HostSlots, Slot, assign_ranks


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe: a worker that reads it waits until the test writes."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


# A worker that shows its process id, and that of a descendant which has left its session and lost its parent.
ESCAPING = f"""
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        os.execvp("sh", ["sh", "-c", {WAIT!r}])
    os._exit(0)
os.wait()
os.write(1, b"%d\\n" % os.getpid())
"""


def by_rank(*commands: str) -> tuple[str, ...]:
    """A command that runs the n-th of `commands` in rank n, and the last one in all later ranks."""
    cases = "".join(f"{rank}) {command};; " for rank, command in enumerate(commands[:-1]))
    return ("sh", "-c", f"case $HOROVOD_RANK in {cases}*) {commands[-1]};; esac")


@pytest.mark.parametrize(
    ("end", "status", "described"),
    [
        ("exit 3", 3, "exited with status 3"),
        ("exit 255", 255, "exited with status 255"),
        ("kill -KILL $$", 137, "was killed by SIGKILL (status 137)"),
        ("kill -SEGV $$", 139, "was killed by SIGSEGV (status 139)"),
        ("kill -TERM $$", 143, "was killed by SIGTERM (status 143)"),
    ],
)
def test_first_failure_is_reported_and_decides_the_status(end: str, status: int, described: str) -> None:
    started = time.monotonic()
    done = horovodrun("-np", "4", *by_rank(WAIT, f"echo why >&2; {end}", WAIT))
    assert done.returncode == status
    said = done.stderr.decode()
    assert f"horovodrun: rank 1 on localhost {described} after " in said
    assert "3 other ranks were ended because of it." in said
    assert "its last lines:\n    why\n" in said
    assert "Traceback" not in said
    assert time.monotonic() - started < 30, "the others did not run to their ends"


def test_last_lines_come_from_stdout_if_stderr_is_empty() -> None:
    done = horovodrun("-np", "1", "sh", "-c", "echo said; exit 1")
    assert done.returncode == 1
    assert done.stderr.decode().endswith("its last lines:\n    said\n")


def test_failure_right_after_much_output_shows_its_very_last_lines() -> None:
    done = horovodrun("-np", "2", *by_rank("seq 30000 >&2; exit 9", WAIT))
    assert done.returncode == 9
    assert done.stderr.decode().endswith("    29999\n    30000\n")


def test_rank_that_succeeds_early_does_not_stop_the_others() -> None:
    done = horovodrun("-np", "3", *by_rank("exit 0", "sleep 0.3; echo later"))
    assert done.returncode == 0
    assert done.stdout.count(b"later") == 2


def test_worker_that_ignores_sigterm_is_killed_after_the_grace_time(gate: Path) -> None:
    stubborn = "trap '' TERM; echo $$; while :; do sleep 0.1; done"
    command = by_rank(f"read go < {gate}; kill -KILL $$", stubborn)
    with running("-np", "2", *command) as job, Watched(*job.numbers(1)) as watched:
        started = time.monotonic()
        gate.write_text("go\n")
        status, _, stderr = job.finish()
        took_s = time.monotonic() - started
        assert watched.still_running(0) == []
    assert status == 137
    assert 4.5 < took_s < 9
    assert b"waiting for 1 rank (1) to end; SIGKILL follows" in stderr


def test_sigterm_lets_workers_clean_up() -> None:
    script = by_rank('trap "echo cleaned; exit 0" TERM; echo ready; while :; do sleep 0.05; done', WAIT)
    with running("-np", "2", *script) as job:
        job.lines(1)
        job.signal(signal.SIGTERM)
        status, stdout, _ = job.finish()
    assert status == 143
    assert b"[0]<stdout>:cleaned" in stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded_and_end_the_job(signum: signal.Signals) -> None:
    with running("-np", "2", "sh", "-c", f"echo $$; {WAIT}") as job, Watched(*job.numbers(2)) as workers:
        job.signal(signum)
        status, _, stderr = job.finish()
        assert workers.still_running(0) == []
    assert status == 128 + signum
    assert f"{signum.name} ended the job after" in stderr.decode()
    assert b"Traceback" not in stderr


def test_second_signal_kills_without_waiting() -> None:
    # The second one comes when the first has been forwarded: two of a kind that nobody has seen yet are one.
    stubborn = "trap 'echo heard' INT; echo $$; while :; do sleep 0.1; done"
    with running("-np", "2", "sh", "-c", stubborn) as job, Watched(*job.numbers(2)) as workers:
        job.signal(signal.SIGINT)
        assert {line.partition(">:")[2] for line in job.lines(2)} == {"heard"}
        assert len(workers.still_running(0)) == 2
        job.signal(signal.SIGINT)
        status, _, stderr = job.finish()
        assert workers.still_running(0) == []
    assert status == 130
    assert b"second signal (SIGINT): killing what still runs" in stderr


def test_ignored_signal_stays_ignored(gate: Path) -> None:
    # What a shell does for a background job, and nohup for SIGHUP.
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running("-np", "1", "sh", "-c", f"echo ready; read go < {gate}; echo survived") as job:
            signal.signal(signal.SIGHUP, previous)
            job.lines(1)
            job.signal(signal.SIGHUP)
            gate.write_text("go\n")
            status, stdout, _ = job.finish()
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert (status, stdout) == (0, b"[0]<stdout>:survived\n")


def test_killed_launcher_leaves_nothing_behind() -> None:
    program = ESCAPING + "time.sleep(60)"
    with running("-np", "2", PYTHON, "-c", program) as job, Watched(*job.numbers(4)) as processes:
        job.process.kill()
        assert processes.still_running(4) == []


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


@pytest.mark.parametrize("killed", ["agent", "guard"])
def test_killed_agent_ends_the_ranks_and_is_reported(killed: str) -> None:
    with running("-np", "2", "sh", "-c", f"echo $PPID; echo $$; {WAIT}") as job:
        numbers = job.numbers(4)
        agent = max(numbers, key=numbers.count)
        with Watched(*(set(numbers) - {agent})) as workers:
            os.kill(agent if killed == "agent" else parent_of(agent), signal.SIGKILL)
            status, _, stderr = job.finish()
            assert workers.still_running(2) == []
    assert status == 1
    assert b"The process that watches the ranks" in stderr
    assert b"Traceback" not in stderr


def test_failure_ends_descendants_that_escaped_too(gate: Path) -> None:
    fail = f"if os.environ['HOROVOD_RANK'] == '1':\n open({str(gate)!r}).read(); sys.exit(5)\ntime.sleep(60)"
    with running("-np", "2", PYTHON, "-c", ESCAPING + fail) as job, Watched(*job.numbers(4)) as processes:
        gate.write_text("go")
        status, _, _ = job.finish()
        assert processes.still_running(0) == []
    assert status == 5


def test_processes_left_behind_by_success_are_ended(gate: Path) -> None:
    succeed = f"open({str(gate)!r}).read()"
    with running("-np", "1", PYTHON, "-c", ESCAPING + succeed) as job, Watched(*job.numbers(2)) as left:
        gate.write_text("go")
        status, _, stderr = job.finish()
        assert left.still_running(0) == []
    assert status == 0
    assert b"ending 1 process that the ranks left behind" in stderr


def test_stopped_worker_is_ended_too() -> None:
    with running("-np", "2", "sh", "-c", f"echo $$; {WAIT}") as job:
        first, second = job.numbers(2)
        with Watched(first, second) as workers:
            os.kill(first, signal.SIGSTOP)
            job.signal(signal.SIGINT)
            job.signal(signal.SIGTERM)
            job.finish()
            assert workers.still_running(0) == []


def test_supervision_goes_on_while_nobody_reads_the_output(gate: Path) -> None:
    second = gate.with_name("second gate")
    os.mkfifo(second)
    talk, fail = f"read go < {gate}; seq 100000; {WAIT}", f"read go < '{second}'; exit 6"
    with running("-np", "2", *by_rank(f"echo $$; {talk}", f"echo $$; {fail}")) as job:
        with Watched(*job.numbers(2)) as workers:
            gate.write_text("go\n")
            job.wait_until_blocked()
            second.write_text("go\n")
            assert workers.still_running(4) == []
        status, stdout, _ = job.finish()
    assert status == 6
    assert stdout.count(b"\n") > 1000


def test_interrupted_launcher_leaves_although_nobody_reads_the_output() -> None:
    command = ("sh", "-c", f"echo $$; seq 100000; {WAIT}")
    with running("-np", "1", *command) as job, Watched(*job.numbers(1), job.process.pid) as processes:
        job.wait_until_blocked()
        job.signal(signal.SIGINT)
        assert processes.still_running(8) == []


class Script:
    """Processes that report these events, one at a time."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)
        self._bell = os.eventfd(1)
        self.ended_with: list[int] = []

    def fileno(self) -> int:
        return self._bell

    def events(self) -> Sequence[Event]:
        return [self._events.pop(0)]

    def finish(self, signum: int) -> None:
        self.ended_with.append(signum)

    def kill(self) -> None:
        raise AssertionError("nobody asked for that")

    def pass_on(self, signum: int) -> None:
        raise AssertionError("nobody asked for that")

    def close(self) -> None:
        os.close(self._bell)


def supervised(
    slots: Sequence[Slot], workers: Script, signals: Signals, patience_s: float = 0.0, size: int = 0
) -> Outcome:
    hosts = {slot.rank: slot.hostname for slot in slots}
    driver = FixedDriver(hosts, size or len(slots), patience_s, time.monotonic())
    Course(driver, workers, signals, Console()).run()
    return driver.outcome(time.monotonic())


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([Exited(0, 1), Exited(2, -9)], 2),  # 2 was killed, and 0 noticed that
        ([Exited(0, 1), Exited(2, -15)], 0),
        ([Exited(0, 1), Exited(2, 3)], 0),
        ([Exited(1, -11), Exited(2, -9)], 1),
    ],
)
def test_rank_that_was_killed_is_the_cause_though_it_is_heard_late(ends: list[Exited], first: int) -> None:
    slots = assign_ranks([HostSlots("a", 2), HostSlots("b", 2)], 4)
    workers = Script(*(Started(rank, 100 + rank) for rank in range(4)), *ends, Finished(()))
    with Signals() as signals:
        outcome = supervised(slots, workers, signals)
    workers.close()
    assert outcome.failure is not None
    assert outcome.failure.rank == first
    assert workers.ended_with == [signal.SIGTERM]


def test_host_that_is_lost_is_the_cause_or_comes_besides() -> None:
    slots = assign_ranks([HostSlots("a", 2), HostSlots("b", 2)], 4)
    lost = HostLost("b", (2, 3), "silent")
    told = Said(0, '{"in_world": true, "text": "raised PeerLostError", "because": 2}')
    cases: list[tuple[list[Event], int | None]] = [
        ([lost, Exited(0, 1)], None),
        ([Exited(0, 1), lost], 0),
        ([*(Started(rank, 100 + rank) for rank in range(4)), told, Exited(0, 1), lost], None),
    ]
    for events, fails in cases:
        workers = Script(*events, Finished(()))
        with Signals() as signals:
            outcome = supervised(slots, workers, signals, patience_s=30)
        workers.close()
        assert outcome.lost == (lost,)
        assert (outcome.failure and outcome.failure.rank) == fails
        assert outcome.ended == (2 if fails is None else 3)


def test_launcher_that_places_ranks_itself_is_supervised_alike() -> None:
    placed = Placed(assign_ranks([HostSlots("a", 1), HostSlots("b", 1)], 2))
    waits = '{"in_world": true, "text": "", "because": null}'
    started: list[Event] = [Started(0, 0), Started(1, 0), Said(0, waits), Said(1, waits)]
    broken, no_word = LaunchError("broken"), LaunchError("no word of it")
    cases: list[tuple[list[Event], tuple[int | None, LaunchError | None]]] = [
        # Rank 0 is ended where it is, before we say so: only rank 1 can be the cause.
        ([Exited(1, 7), Exited(0, -15, told=True), Finished((), no_word)], (1, None)),
        ([Exited(0, -15, told=True), Exited(1, 7), Finished((), no_word)], (1, None)),
        ([Exited(1, 7), Finished((), no_word)], (1, None)),
        ([Failed(broken), Exited(1, 7), Finished(())], (None, broken)),
        ([Exited(0, -15, told=True), Finished((), no_word)], (None, no_word)),
        ([Exited(0, 0), Exited(1, 0), Finished(())], (None, None)),
    ]
    for events, (rank, error) in cases:
        workers = Script(placed, *started, *events)
        with Signals() as signals:
            outcome = supervised((), workers, signals, patience_s=30, size=2)
        workers.close()
        assert (outcome.failure and outcome.failure.rank, outcome.error) == (rank, error)
        assert outcome.hosts == {0: "a", 1: "b"}


SHUT_DOWN = "horovod.errors.ShutdownError: Horovod has been shut down by rank 1 on host b."
LOST = "horovod.errors.PeerLostError: rank {} on host b is lost: no sign of life for 5 s"


@pytest.mark.parametrize(
    ("texts", "because", "ended"),
    [
        ([LOST.format(1), LOST.format(1)], [1, 1], [0, 2]),
        ([LOST.format(1), LOST.format(2)], [1, 2], [0, 3]),  # ranks 1 and 2 are silent
        ([LOST.format(1), ""], [1, None], [0, 2]),
    ],
)
def test_a_stopped_rank_is_ended_when_those_that_have_lost_it_end_well(
    texts: list[str], because: list[int | None], ended: list[int]
) -> None:
    size = ended[-1] + 1
    stopped = [Stopped(rank) for rank in range(size) if rank not in ended]
    outcome, signals = _left_alone(size, texts, because, ended, -15, stopped)
    assert signals == [signal.SIGTERM]
    assert outcome.failure == RankOutcome(1, None, texts[0], told_by=0, stopped=True)
    assert outcome.ended == size - 3
    with pytest.raises(WorkerFailed) as caught:
        raise_for(outcome, "python", lambda rank: ())
    assert str(caught.value).startswith("rank 1 on b was stopped by a signal, and was ended after 0.")
    assert f"the other ranks have lost it, and have ended. Rank 0 had {LOST.format(1)}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "because", "ended", "news"),
    [
        (LOST.format(1), 1, [0], [Stopped(1)]),  # rank 2 goes on: nobody has lost it
        (SHUT_DOWN, 1, [0, 2], [Stopped(1)]),
        ("", None, [0, 2], [Stopped(1)]),
        (LOST.format(1), 1, [0, 2], []),
        (LOST.format(1), 1, [0, 2], [Stopped(1), Continued(1)]),  # a last checkpoint
    ],
)
def test_a_rank_that_is_at_work_is_left_alone_when_others_end_well(
    text: str, because: int | None, ended: list[int], news: list[Event]
) -> None:
    outcome, signals = _left_alone(3, [text] * 2, [because] * 2, ended, 0, news)
    assert signals == []
    assert outcome.failure is None


def _left_alone(
    size: int,
    texts: list[str],
    because: list[int | None],
    ended: list[int],
    last: int,
    news: Sequence[Event],
) -> tuple[Outcome, list[int]]:
    """``ended`` end well, with these words, after ``news``; then the others in the way ``last``."""
    ranks = range(size)
    words = [
        json.dumps({"in_world": True, "text": text, "because": cause})
        for text, cause in zip(texts, because, strict=True)
    ]
    said = zip(ended, words, strict=False)
    workers = Script(
        *(Started(rank, 100 + rank) for rank in ranks),
        *(Said(rank, word(True)) for rank in ranks),
        *news,
        *(event for rank, each in said for event in (Said(rank, each), Exited(rank, 0))),
        *(Exited(rank, last) for rank in ranks if rank not in ended),
        Finished(()),
    )
    slots = assign_ranks([HostSlots("a", 1), HostSlots("b", size - 1)], size)
    with Signals() as signals:
        outcome = supervised(slots, workers, signals)
    workers.close()
    return outcome, workers.ended_with


def word(in_world: bool) -> str:
    return f'{{"in_world": {str(in_world).lower()}, "text": "", "because": null}}'


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("left_first", [True, False], ids=["left before", "left after"])
def test_a_rank_that_has_just_left_its_world_may_say_why(ends: bool, left_first: bool) -> None:
    """It has got an error, and is about to show it. Only if it does not end soon it is ended."""

    class Slow(Script):
        """The last event comes when the rank is ended, or has ended by itself."""

        def events(self) -> Sequence[Event]:
            if len(self._events) == 1 and not self.ended_with and ends:
                return [Exited(0, 1), *super().events()]
            if len(self._events) == 1 and not self.ended_with:
                os.eventfd_read(self._bell)
                return []
            return [*([Exited(0, -15)] if len(self._events) == 1 else []), *super().events()]

        def finish(self, signum: int) -> None:
            super().finish(signum)
            self.ended_early = len(self._events) == 1  # the last event comes with the rank's own end
            os.eventfd_write(self._bell, 1)

    slots = assign_ranks([HostSlots("a", 2)], 2)
    left, failed = Said(0, word(False)), Exited(1, 4)
    workers = Slow(
        *(Started(rank, 100 + rank) for rank in range(2)),
        Said(0, word(True)),
        *((left, failed) if left_first else (failed, left)),
        Finished(()),
    )
    began = time.monotonic()
    with Signals() as signals:
        outcome = supervised(slots, workers, signals, patience_s=30)
    took_s = time.monotonic() - began
    workers.close()
    assert (outcome.failure and outcome.failure.rank) == 1
    assert workers.ended_with == [signal.SIGTERM]
    assert workers.ended_early == (not ends)
    assert took_s < 10.0, "that is far from the patience with ranks that others need"


def test_many_ranks_fail_together_and_one_is_named() -> None:
    done = horovodrun("-np", "8", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert done.stderr.decode().count(" on localhost exited with status 7 after ") == 1

"""Signals that end nothing: SIGUSR1 and its like reach ranks that have a handler, SIGQUIT shows stacks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, LIMIT_S, PYTHON, environment, running

MANY = os.environ.get("FARANDOLE_FULL_MATRIX") == "1"
pytestmark = pytest.mark.timeout(180)

WAITS_S = 60.0

# Rank 0 has a handler; rank 1 has none, and ends when rank 0 tells it by a file.
ONE_HAS_A_HANDLER = """
import os, signal, sys, time
folder, rank = sys.argv[1], os.environ["HOROVOD_RANK"]
if rank == "0":
    came = []
    signal.signal(signal.SIGUSR1, lambda signum, frame: came.append(signum))
print("ready", flush=True)
if rank == "0":
    while not came:
        time.sleep(0.01)
    open(folder + "/done", "w").close()
while not os.path.exists(folder + "/done"):
    time.sleep(0.01)
print(f"rank {rank} ends well", flush=True)
"""
# A data loader's worker inherits the handler, and must not run it.
WITH_A_CHILD = """
import os, signal, sys, time
came = []
signal.signal(signal.SIGUSR2, lambda signum, frame: came.append(os.getpid()))
parent = os.getpid()
child = os.fork()
if child == 0:
    deadline = time.monotonic() + 60
    while os.getppid() == parent and not came and time.monotonic() < deadline:
        time.sleep(0.01)
    os._exit(7 if came else 0)
print("ready", flush=True)
while not came:
    time.sleep(0.01)
done, status = os.waitpid(child, os.WNOHANG)
assert done == 0, status
os.kill(child, signal.SIGKILL)
print("only the parent", flush=True)
"""
# Rank 1 never joins the collective that rank 0 waits in.
STUCK = """
import os, sys, time
import numpy
import horovod.arrays as hvd
hvd.init()
print("ready", flush=True)
def waits_for_the_others():
    hvd.allreduce(numpy.ones(1), name="x")
def stands_elsewhere():
    while not os.path.exists(sys.argv[1] + "/done"):
        time.sleep(0.01)
    waits_for_the_others()
(waits_for_the_others if hvd.rank() == 0 else stands_elsewhere)()
print("went on", flush=True)
"""
STUBBORN = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done"


class Job:
    """A job that is under way: its output comes together."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = ""

    def read_until(self, *texts: str, times: int = 1) -> None:
        """Until each text has come so often."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + WAITS_S
        while any(self.said.count(text) < times for text in texts):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{texts} did not come: {self.said}"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, f"{texts} did not come: {self.said}"
            self.said += data.decode()

    def finish(self) -> int:
        rest, _ = self.process.communicate(timeout=WAITS_S)
        self.said += rest.decode()
        return self.process.returncode


@contextmanager
def job(*words: str, folder: Path | None = None) -> Iterator[Job]:
    process = subprocess.Popen(
        [*COMMAND, *words],
        env=environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with watched(process) as under_way:
        yield under_way


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[Job]:
    try:
        yield Job(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


ELASTIC = ("--min-np", "2")
MPIRUN = ("--launcher", "mpirun", "--mpi-args=--allow-run-as-root --oversubscribe")
WAYS = {"local": (), "elastic": ELASTIC, "mpirun": MPIRUN}


@pytest.mark.parametrize("way", WAYS)
def test_sigusr1_goes_to_ranks_with_a_handler_and_to_no_other(way: str, tmp_path: Path) -> None:
    rank = (PYTHON, "-c", ONE_HAS_A_HANDLER, str(tmp_path))
    with job("-np", "2", *WAYS[way], *rank) as running_job:
        running_job.read_until("ready", times=2)
        for signum in (signal.SIGWINCH, signal.SIGCONT, signal.SIGUSR1):  # all at once
            running_job.process.send_signal(signum)
        assert running_job.finish() == 0, running_job.said
    assert running_job.said.count("ends well") == 2
    assert "SIGUSR1 does not go to rank 1, which has no handler for it" in running_job.said


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGWINCH])
def test_signals_without_a_handler_end_nothing(signum: signal.Signals, tmp_path: Path) -> None:
    done = tmp_path / "done"
    rank = f"echo ready; while [ ! -e {done} ]; do sleep 0.05; done; echo went on"
    with job("-np", "2", "sh", "-c", rank) as running_job:
        running_job.read_until("ready", times=2)
        for _ in range(2):
            running_job.process.send_signal(signum)
        if signum != signal.SIGWINCH:
            running_job.read_until("horovodrun: ")
        done.touch()
        assert running_job.finish() == 0, running_job.said
    assert running_job.said.count("horovodrun: ") == (0 if signum == signal.SIGWINCH else 1)
    assert running_job.said.count("went on") == 2


def test_handler_below_a_shell_is_found_and_its_children_are_left_alone() -> None:
    with job("-np", "1", "sh", "-c", '"$0" -c "$1"; exit $?', PYTHON, WITH_A_CHILD) as running_job:
        running_job.read_until("ready")
        running_job.process.send_signal(signal.SIGUSR2)
        assert running_job.finish() == 0, running_job.said
    assert "only the parent" in running_job.said


def signalled(script: str, signum: signal.Signals) -> str:
    """Output of a rank that runs ``script``, and gets a signal when it is ready."""
    with job("-np", "1", PYTHON, "-c", script) as running_job:
        running_job.read_until("ready")
        running_job.process.send_signal(signum)
        assert running_job.finish() == 0, running_job.said
    return running_job.said


def test_signal_that_a_thread_waits_for_without_a_handler_reaches_it() -> None:
    script = """
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
waits = threading.Thread(target=lambda: print(signal.sigwait({signal.SIGUSR1}).name, flush=True))
waits.start()
print("ready", flush=True)
waits.join()
"""
    assert "<stdout>:SIGUSR1" in signalled(script, signal.SIGUSR1)


@pytest.mark.parametrize("way", WAYS if MANY else ["local"])
def test_sigquit_shows_where_every_rank_stands_and_ends_nothing(way: str, tmp_path: Path) -> None:
    with job("-np", "2", *WAYS[way], PYTHON, "-c", STUCK, str(tmp_path)) as running_job:
        running_job.read_until("ready", times=2)
        while "in waits_for_the_others" not in running_job.said:  # rank 0 may not be there yet
            running_job.process.send_signal(signal.SIGQUIT)
            running_job.read_until("in <module>", times=running_job.said.count("in <module>") + 1)
        running_job.read_until("in stands_elsewhere")
        (tmp_path / "done").touch()
        assert running_job.finish() == 0, running_job.said
    assert running_job.said.count("went on") == 2


def test_handler_of_the_program_for_sigquit_stays() -> None:
    script = """
import signal, sys
import horovod.arrays as hvd
signal.signal(signal.SIGQUIT, lambda *_: (print("my own", flush=True), sys.exit(0)))
hvd.init()
print("ready", flush=True)
signal.pause()
"""
    said = signalled(script, signal.SIGQUIT)
    assert "my own" in said
    assert "File" not in said


def test_handler_of_a_program_that_calls_run_is_called_as_well() -> None:
    program = """
import os, signal, sys, threading
import horovod
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
def train():
    import os, signal
    here = []
    signal.signal(signal.SIGUSR1, lambda signum, _: here.append(signal.Signals(signum).name))
    os.write(1, b"ready\\n")
    while not here:
        signal.pause()
    return here[0]
print(horovod.run(train, num_proc=1), "and here" if came else "not here", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with watched(process) as running_job:
        running_job.read_until("ready")
        process.send_signal(signal.SIGUSR1)
        assert running_job.finish() == 0, running_job.said
    assert "['SIGUSR1'] and here" in running_job.said


def test_signals_while_a_job_ends_do_not_change_its_status() -> None:
    with running("-np", "1", "sh", "-c", STUBBORN) as started:
        started.lines(1)
        started.signal(signal.SIGTERM)
        for _ in range(20):
            for signum in (signal.SIGUSR1, signal.SIGQUIT, signal.SIGUSR2):
                started.signal(signum)
            time.sleep(0.01)  # they are to come while it ends, spread out
        status, _, said = started.finish()
    assert status == 128 + signal.SIGTERM, said


def test_ranks_of_another_launcher_that_do_not_end_are_named_once() -> None:
    with job("-np", "2", *WAYS["mpirun"], "sh", "-c", STUBBORN) as running_job:
        running_job.read_until("ready", times=2)
        running_job.process.send_signal(signal.SIGTERM)
        assert running_job.finish() == 128 + signal.SIGTERM, running_job.said
    assert running_job.said.count("waiting for") == 1, running_job.said
    assert "waiting for 2 ranks (0, 1) to end" in running_job.said


def test_second_ctrl_c_kills_ranks_of_another_launcher_at_once() -> None:
    with job("-np", "2", *WAYS["mpirun"], "sh", "-c", STUBBORN) as running_job:
        running_job.read_until("ready", times=2)
        running_job.process.send_signal(signal.SIGINT)
        running_job.read_until("SIGINT received: ending 2 ranks; a second one kills them")
        running_job.process.send_signal(signal.SIGINT)
        assert running_job.finish() == 128 + signal.SIGINT, running_job.said
    assert "second signal (SIGINT): killing what still runs" in running_job.said
    assert "mpirun does not end by itself" not in running_job.said  # nobody has waited for it

"""What people meet: ranks that leave, stall, never come or are interrupted, in real jobs of horovodrun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("whole_end")]

PRELUDE = "import os, sys, time\nimport torch\nimport horovod.torch as hvd\n"
SUM_FOR_EVER = "hvd.allreduce(torch.ones(1), name='first')\nhvd.allreduce(torch.ones(1), name='second')\n"


def job(tmp_path: Path, script: str, **variables: str) -> subprocess.Popen[str]:
    path = tmp_path / "train.py"
    path.write_text(PRELUDE + script)
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, str(path)]
    return subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str], timeout_s: float = 60.0) -> tuple[int, str]:
    output, _ = process.communicate(timeout=timeout_s)
    return process.returncode, output


def test_a_rank_that_leaves_early_is_named_to_the_others(tmp_path: Path) -> None:
    status, output = end(job(tmp_path, "hvd.init()\nif hvd.rank() == 1: sys.exit(0)\n" + SUM_FOR_EVER))
    assert status == 1, output
    assert "ShutdownError" in output, output
    assert re.search(r"has been shut down.*rank 1", output), output


BATCHES = {
    "torch": """
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for _ in range(5 + hvd.rank()): model(torch.ones(4, 3)).sum().backward(); optimizer.step()
""",
    "keras": """
import horovod.keras, keras, numpy
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile(optimizer=horovod.keras.DistributedOptimizer(keras.optimizers.SGD()), loss="mse")
rows = numpy.ones((5 + hvd.rank(), 3), "f")
model.fit(rows, rows[:, :1], batch_size=1, verbose=0)
""",
}


@pytest.mark.parametrize("loop", ["torch"] + (["keras"] if os.environ.get("FARANDOLE_FULL_MATRIX") else []))
def test_one_batch_more_is_told_in_numbers(tmp_path: Path, loop: str) -> None:
    status, output = end(job(tmp_path, "hvd.init()\n" + BATCHES[loop]))
    assert status == 1, output
    assert re.search(
        r"by rank 0 on host localhost: its script has come to its end\. Rank 0 took part in \S+ 5 times, and "
        r"rank 1 on host localhost has begun number 6: give all ranks the same number of batches, or let "
        r"each call hvd\.join\(\)",
        output,
    ), output


def test_a_rank_that_vanishes_without_a_word_is_named_to_the_others(tmp_path: Path) -> None:
    script = "hvd.init()\nhvd.barrier()\nif hvd.rank() == 1: os._exit(0)\n" + SUM_FOR_EVER
    status, output = end(job(tmp_path, script))
    assert status == 1, output
    assert "PeerLostError" in output, output
    assert "rank 1 on host" in output, output


@pytest.mark.parametrize(("groups", "victim"), [("", 0), ("single", 1)], ids=["shm", "tcp"])
def test_a_rank_that_closes_its_descriptors_is_the_one_that_is_named(
    tmp_path: Path, groups: str, victim: int
) -> None:
    script = (
        "hvd.init()\ntry:\n    hvd.barrier()\n"  # which the others may not have finished when it closes them
        f"    if hvd.rank() == {victim}: os.closerange(3, 4096); time.sleep(2); os._exit(0)\n"
        "    for _ in range(1000): hvd.allreduce(torch.ones(1), name='x'); time.sleep(0.01)\n"
        "except hvd.HorovodInternalError as error: print(f'told: {error.rank} {error}', flush=True)\n"
        "os._exit(0)\n"
    )
    _, output = end(job(tmp_path, script, HOROVOD_TRANSPORT_GROUPS=groups))
    told = [line for line in output.splitlines() if "told: " in line]
    assert len(told) == 1, output
    assert f"told: {victim} rank {victim} on host" in told[0], output
    assert groups or "closed" in told[0], output
    assert "its process has ended" not in told[0], output


def test_a_rank_that_fails_ends_the_job_with_its_status(tmp_path: Path) -> None:
    script = "hvd.init()\nhvd.barrier()\nif hvd.rank() == 1: sys.exit(7)\ntime.sleep(60)\n"
    status, output = end(job(tmp_path, script))
    assert status == 7, output
    assert "rank 1" in output


def test_a_rank_that_never_calls_init_is_named(tmp_path: Path) -> None:
    script = "if os.environ['HOROVOD_RANK'] == '1': time.sleep(60)\nhvd.init()\n"
    status, output = end(job(tmp_path, script, HOROVOD_START_TIMEOUT="2"))
    assert status == 1, output
    assert "Rank 1 of 2 did not call hvd.init()" in output, output


def test_a_stalled_tensor_is_named_with_the_ranks_that_owe_it(tmp_path: Path) -> None:
    script = (
        "hvd.init()\nif hvd.rank() == 1: time.sleep(3)\n"
        "hvd.allreduce(torch.ones(1), name='late')\nprint('done')\n"
    )
    status, output = end(job(tmp_path, script, HOROVOD_STALL_CHECK_TIME_SECONDS="1"))
    assert status == 0, output
    assert "waiting for remainder of ranks" in output, output
    assert "Missing ranks:" in output, output
    assert "1: [allreduce.late]" in output, output


def test_ranks_that_wait_for_different_operations_hear_it_long_before_the_limit(tmp_path: Path) -> None:
    script = (
        "hvd.init()\ntry:\n    if hvd.rank() == 0: hvd.allreduce(torch.ones(1), name='metric')\n"
        "    hvd.broadcast(torch.ones(1), 0, name='weight')\n"
        "except hvd.HorovodInternalError as error: print(type(error).__name__, error.waited_s < 45, error)\n"
    )
    status, output = end(job(tmp_path, script))
    assert status == 0, output
    assert output.count("CollectiveTimeout True Deadlock: every rank waits") == 2, output
    assert "Of allreduce.metric: all ranks must call it. Is it inside `if hvd.rank() == 0:`?" in output, (
        output
    )


def test_a_stall_beyond_the_limit_ends_the_job_on_every_rank(tmp_path: Path) -> None:
    script = (
        "hvd.init()\nif hvd.rank() == 1: time.sleep(6)\n"
        "try:\n    hvd.allreduce(torch.ones(1), name='late')\n"
        "except hvd.HorovodInternalError as error: print('rank', hvd.rank(), type(error).__name__, error)\n"
    )
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    status, output = end(job(tmp_path, script, **limits))
    assert status == 0, output
    assert "rank 0 CollectiveTimeout" in output, output
    assert "allreduce.late" in output, output
    assert "rank 1 CollectiveTimeout" in output, output


def test_ctrl_c_ends_waiting_ranks(tmp_path: Path) -> None:
    waits = "def wait():\n    if hvd.rank(): time.sleep(60)\n    hvd.allreduce(torch.ones(1))\n"
    process = job(
        tmp_path,
        f"hvd.init()\n{waits}try: print('up', flush=True); wait()\n"
        "except KeyboardInterrupt: print(hvd.rank(), 'was interrupted', flush=True); raise\n",
    )
    assert process.stdout is not None
    seen = ""
    while seen.count("up") < 2:
        seen += process.stdout.readline()
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, output = end(process)
    assert status == 130, output
    assert time.monotonic() - started < 10
    assert "0 was interrupted" in output, output
    assert "1 was interrupted" in output, output
    assert "Traceback" not in output, output


def test_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    script = (
        "hvd.init()\nmine = torch.tensor([float(os.environ['JOB'])])\n"
        "print('sum', hvd.allreduce(mine, op=hvd.Sum).item())\n"
    )
    jobs = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        jobs.append(job(folder, script, JOB=str(number + 1)))
    for number, process in enumerate(jobs):
        status, output = end(process)
        assert status == 0, output
        assert output.count(f"sum {2.0 * (number + 1)}") == 2, output


def test_a_wrong_key_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    script = (
        "if os.environ['HOROVOD_RANK'] == '1': os.environ['HOROVOD_SECRET_KEY'] = '00' * 32\nhvd.init()\n"
    )
    status, output = end(job(tmp_path, script, HOROVOD_START_TIMEOUT="30"))
    assert status == 1, output
    assert "key" in output, output
    assert "did not call hvd.init()" not in output, output

"""The batch files of docs/slurm.md do in a real cluster of Slurm what the page says, with fewer tasks."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.hosts.jobs import LIMIT_S
from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm.md"
JOB = Path(__file__).with_name("batch_job.py")
CHECKPOINT_JOB = Path(__file__).with_name("checkpoint_job.py")
SMALLER = {"--nodes=4": "--nodes=2", "--ntasks-per-node=8": "--ntasks-per-node=2", "--cpus-per-task=4": ""}
"""What a cluster of two nodes with four cores each, on a machine with fewer, cannot give."""
pytestmark = pytest.mark.timeout(2 * LIMIT_S)


def blocks() -> list[str]:
    """The blocks of the page, without their indentation."""
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", PAGE.read_text(), re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip() for block in found]


def batch_file(launch: str) -> str:
    """The page's batch file, ``launch`` in the place of what starts the processes."""
    (whole,) = (block for block in blocks() if block.startswith("#!/bin/bash"))
    head, _, own = whole.rpartition("\n")
    assert own.startswith("horovodrun ")
    text = f"{head}\n{launch or own}\n"
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    return text


def file_that_asks_for(signal_name: str) -> str:
    """The page's batch file for a job that gets a signal before its time is over."""
    (asking,) = (block for block in blocks() if f"--signal=B:{signal_name}@" in block)
    options, launch = asking.split("\n\n")
    assert launch == "exec horovodrun python train.py --resume checkpoints/"
    return batch_file(launch).replace("\n\n", f"\n{options}\n\n", 1)


def launches() -> dict[str, str]:
    """What the page writes in the place of the last line: who starts the processes -> the line or lines."""
    (srun,) = (block for block in blocks() if block.startswith("horovodrun --launcher srun "))
    (alone,) = (block for block in blocks() if block.startswith("srun "))
    (elastic,) = (block for block in blocks() if "--min-np" in block)
    options, launch = elastic.split("\n\n")
    assert options == "#SBATCH --no-kill"
    launch = launch.replace("-np 32 --min-np 16", "-np 4 --min-np 2")
    return {"horovodrun": "", "horovodrun by srun": srun, "srun alone": alone, "elastic": launch}


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory that the hosts share: the environment that the page activates, and ``train.py``."""
    folder = Path(tempfile.mkdtemp(prefix="farandole-home-"))
    activate = folder / "train" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    # The environment of these tests may have been moved: its own script would name the place where it was.
    activate.write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')
    shutil.copy(JOB, folder / "train.py")
    yield folder
    shutil.rmtree(folder)


def submitted(
    hosts: SimulatedHosts, clients: Mapping[str, str], home: Path, text: str, *options: str
) -> tuple[int, str]:
    """What ``sbatch`` returned and said."""
    (home / "job.sh").write_text(text)
    extra = environment({**clients, "HOME": str(home)})
    done = hosts.run(0, "sbatch", *options, "job.sh", extra=extra, cwd=home, timeout_s=LIMIT_S)
    return done.returncode, (done.stdout + done.stderr).decode()


def log_of(home: Path) -> str:
    return "".join(file.read_text() for file in home.glob("train-*.log"))


@pytest.mark.parametrize("starter", launches())
def test_batch_file_trains_with_all_tasks_of_the_job(
    starter: str, two_hosts: SimulatedHosts, slurm: Mapping[str, str], home: Path
) -> None:
    text = batch_file(launches()[starter])
    status, said = submitted(two_hosts, slurm, home, text, "--wait")
    log = log_of(home)
    assert status == 0, said + log
    one, other = two_hosts.names
    ranks = sorted(re.findall(r"rank (\d) of (\d) on (\S+): sum (\S+)", log))
    assert ranks == [(str(rank), "4", one if rank < 2 else other, "10.0") for rank in range(4)], log
    if starter == "horovodrun":
        kept = [file.read_text() for file in sorted(home.glob("logs-*/rank.*/stdout"))]
        assert [re.findall(r"rank (\d) of 4", text) for text in kept] == [["0"], ["1"], ["2"], ["3"]]


def test_signal_before_the_end_of_the_time_reaches_the_ranks(
    two_hosts: SimulatedHosts, slurm: Mapping[str, str], home: Path
) -> None:
    status, said = submitted(two_hosts, slurm, home, file_that_asks_for("TERM"))
    assert status == 0, said
    number = said.split()[-1]
    deadline = time.monotonic() + LIMIT_S
    while len(list(home.glob("checkpoints/waits-*"))) < 4:
        assert time.monotonic() < deadline, log_of(home)
        time.sleep(0.1)  # nothing tells that a file has come
    # Slurm does this by itself some time before the end; its clock counts in minutes.
    two_hosts.run(0, "scancel", "--batch", "--signal=TERM", number, extra=slurm)
    while two_hosts.run(0, "squeue", "--noheader", "--jobs", number, extra=slurm).stdout.strip():
        assert time.monotonic() < deadline, log_of(home)
        time.sleep(0.1)
    saved = sorted(file.name for file in home.glob("checkpoints/saved-*"))
    assert saved == [f"saved-{rank}" for rank in range(4)], log_of(home)
    assert "SIGTERM ended the job" in log_of(home)


@pytest.mark.timeout(4 * LIMIT_S)
def test_sigusr1_becomes_a_checkpoint_and_the_job_goes_on_from_it(
    two_hosts: SimulatedHosts, slurm: Mapping[str, str], home: Path
) -> None:
    shutil.copy(CHECKPOINT_JOB, home / "train.py")
    status, said = submitted(two_hosts, slurm, home, file_that_asks_for("USR1"), "--open-mode=append")
    assert status == 0, said
    number = said.split()[-1]
    deadline = time.monotonic() + 3 * LIMIT_S

    def asked(*command: str) -> str:
        return two_hosts.run(0, *command, extra=slurm).stdout.decode()

    def state() -> str:
        return asked("squeue", "--noheader", "--format=%T", "--jobs", number).strip()

    def all_said() -> str:
        log_of_slurm = Path(slurm["SLURM_CONF"]).parent / "log" / "slurmctld.log"
        return log_of(home) + asked("scontrol", "show", "job", number) + log_of_slurm.read_text()

    def wait_until(done: Callable[[], bool]) -> None:
        while not done():
            assert time.monotonic() < deadline, all_said()
            time.sleep(0.1)  # nothing tells that a file has come, or that a job has ended

    wait_until(lambda: len(list(home.glob("checkpoints/trains-0-*"))) == 4)
    asked("scancel", "--batch", "--signal=USR1", number)
    wait_until(lambda: (home / "checkpoints" / "step").exists())
    wait_until(lambda: state() == "PENDING")
    requeued = int(time.time())
    # Slurm lets a job that was requeued wait for two minutes, the life of a credential. It must wait for the
    # next second at least: nodes compare whole seconds, and take a newer credential for the one revoked.
    wait_until(lambda: int(time.time()) > requeued)

    def starts_again() -> bool:
        asked("scontrol", "update", f"JobId={number}", "StartTime=now")
        return state() != "PENDING"

    wait_until(starts_again)
    wait_until(lambda: not state())
    log, step = log_of(home), (home / "checkpoints" / "step").read_text()
    committed = {file.name: file.read_text() for file in home.glob("checkpoints/committed-*")}
    assert committed == {f"committed-{rank}": str(int(step) - 1) for rank in range(4)}, log
    assert len(re.findall(rf"rank \d begins at step {step}, restarts 1", log)) == 4, all_said()
    assert log.partition("restarts 1")[2].count("has ended its steps") == 4, all_said()

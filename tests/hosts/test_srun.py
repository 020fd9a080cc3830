"""``horovodrun`` in a Slurm cluster of two hosts: by srun, and by ssh on what was allocated."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.hosts.jobs import LIMIT_S, PYTHON, horovodrun, running, signal_processes, slots
from tests.hosts.simulated import SimulatedHosts
from tests.hosts.test_mpirun import ALLREDUCE, PLACE, up
from tests.launch.launching import COMMAND, environment
from tests.launch.test_signals import ONE_HAS_A_HANDLER

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

SRUN = ("--launcher", "srun")


def ranks_left(hosts: SimulatedHosts) -> int:
    return sum(
        int(hosts.run(host, "sh", "-c", "ps -eo args= | grep -c '^sleep 61'").stdout) for host in range(2)
    )


def test_tasks_are_placed_as_asked_and_reduce(two_hosts: SimulatedHosts, slurm: Mapping[str, str]) -> None:
    # Left to itself, Slurm would put both on the first host, or two and one.
    words = ("-H", slots(two_hosts, 1, 2), "sh", "-c", f'{PLACE}; exec "$0" -c "$1"', PYTHON, ALLREDUCE)
    done = horovodrun(two_hosts, "-np", "3", *SRUN, *words, extra=slurm)
    assert done.returncode == 0, done.stderr.decode()
    lines = sorted(done.stdout.decode().splitlines())
    one, other = two_hosts.names
    places = [["0", "0", "0", one], ["1", "0", "1", other], ["2", "1", "0", other]]
    assert [line.partition(">:")[2].split()[:4] for line in lines if ":6.0" not in line] == places
    assert sum(line.endswith(":6.0") for line in lines) == 3


def test_failing_task_decides_the_status(two_hosts: SimulatedHosts, slurm: Mapping[str, str]) -> None:
    command = 'if [ "$HOROVOD_RANK" = 1 ]; then echo bad >&2; exit 7; fi; exec sleep 61'
    done = horovodrun(
        two_hosts, "-np", "2", *SRUN, "-H", slots(two_hosts, 1, 1), "sh", "-c", command, extra=slurm
    )
    assert done.returncode == 7
    assert f"rank 1 on {two_hosts.names[1]} exited with status 7" in done.stderr.decode()
    assert ranks_left(two_hosts) == 0


def test_signal_ends_the_tasks(two_hosts: SimulatedHosts, slurm: Mapping[str, str]) -> None:
    words = ("-np", "2", *SRUN, "-H", slots(two_hosts, 1, 1), "sh", "-c", "echo up; exec sleep 61")
    with running(two_hosts, *words, extra=slurm) as job:
        up(job, 2)
        signal_processes(two_hosts, 0, " ".join(COMMAND), signal.SIGTERM)
        status, said = job.finish()
    assert status == 128 + signal.SIGTERM, said
    assert "SIGTERM ended the job" in said
    assert ranks_left(two_hosts) == 0


def test_sigusr1_reaches_the_task_with_a_handler_and_no_other(
    two_hosts: SimulatedHosts, slurm: Mapping[str, str], tmp_path: Path
) -> None:
    script = (PYTHON, "-c", ONE_HAS_A_HANDLER, str(tmp_path))
    with running(two_hosts, "-np", "2", *SRUN, "-H", slots(two_hosts, 1, 1), *script, extra=slurm) as job:
        up(job, 2, "ready")
        signal_processes(two_hosts, 0, " ".join(COMMAND), signal.SIGUSR1)
        status, said = job.finish()
    assert status == 0, said
    assert said.count("ends well") == 2
    assert "SIGUSR1 does not go to rank 1, which has no handler for it" in said


@pytest.mark.parametrize("launcher", ["ssh", "srun"])
def test_in_an_allocation_neither_hosts_nor_their_number_need_be_said(
    launcher: str, two_hosts: SimulatedHosts, slurm: Mapping[str, str]
) -> None:
    words = ["salloc", "-N", "2", "--ntasks-per-node=2", *COMMAND, "--launcher", launcher, "sh", "-c", PLACE]
    # A batch job would have the same variables; here the output comes back by itself.
    done = two_hosts.run(0, *words, extra=environment(slurm), timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr.decode()
    places = sorted(line.partition(">:")[2].split()[0:4] for line in done.stdout.decode().splitlines())
    one, other = two_hosts.names
    assert [(place[0], place[3]) for place in places] == [("0", one), ("1", one), ("2", other), ("3", other)]
    assert f": {one}:2,{other}:2" in done.stderr.decode(), "it says what it took"


def test_horovodrun_as_a_task_of_srun_is_refused(two_hosts: SimulatedHosts, slurm: Mapping[str, str]) -> None:
    words = ["srun", "-N", "2", "-n", "2", *COMMAND, "true"]
    done = two_hosts.run(0, *words, extra=environment({**slurm, "PATH": os.environ["PATH"]}))
    assert done.returncode == 2
    assert b"is itself task" in done.stderr

"""Mistakes that people make on the command line: each is told with what to write instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.launching import horovodrun

from horovod.bootstrap.variables import remarks
from horovod.errors import ConfigError
from horovod.launch.cli import run_commandline
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import to_job
from horovod.launch.placement.allocations import find_allocation
from horovod.launch.placement.hosts import parse_hostfile, parse_hosts

# What `srun --pty bash` sets on a node with four cores.
ONE_TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_JOB_CPUS_PER_NODE": "4",
}


def test_more_processes_than_slurm_has_tasks() -> None:
    allocated = find_allocation(ONE_TASK)
    with pytest.raises(ConfigError) as caught:
        to_job(parse_command_line(["-np", "2", "train"]), allocated)
    said = str(caught.value)
    assert "2 processes were requested, but the hosts have 1 slot of Slurm job 7 (localhost:1)" in said
    assert "--ntasks=2" in said
    assert said.endswith("-H localhost:2")
    assert to_job(parse_command_line(["-np", "2", "-H", "localhost:2", "train"]), None).processes == 2


def test_more_processes_than_slurm_has_tasks_on_several_nodes() -> None:
    nodes = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "no-such-[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    with pytest.raises(ConfigError, match=r"-H no-such-1:2,no-such-2:2$"):
        to_job(parse_command_line(["-np", "3", "train"]), find_allocation(nodes))


def test_user_of_a_host_belongs_to_ssh() -> None:
    reads: list[Callable[[], object]] = [
        lambda: parse_hostfile("me@server1 slots=2\n", "hosts"),
        lambda: parse_hosts("me@server1:2"),
    ]
    for read in reads:
        with pytest.raises(ConfigError, match=r"Write server1.* and --ssh-args='-l me'") as caught:
            read()
        assert "Host server1, and below it User me" in str(caught.value)


def script(folder: Path, first_line: str) -> str:
    path = folder / "train.sh"
    path.write_bytes(f"{first_line}\necho ran\n".encode())
    path.chmod(0o755)
    return str(path)


def test_variable_in_front_of_the_command() -> None:
    done = horovodrun("-np", "1", "FOO=1", "train")
    assert done.returncode == 127
    assert b"(FOO=... horovodrun ...), or behind env: horovodrun ... env FOO=1 ..." in done.stderr


@pytest.mark.parametrize(
    ("first_line", "said"),
    [
        ("#!/bin/sh\r", "with a carriage return. It was written on Windows: sed -i 's/\\r$//' "),
        (
            "#!/no/such/python -u",
            "its interpreter was not found: /no/such/python, which its first line names",
        ),
        ("#!/usr/bin/env sh\r", "seems to end with a carriage return. It was written on Windows: sed -i "),
    ],
)
def test_script_whose_interpreter_is_not_there(first_line: str, said: str, tmp_path: Path) -> None:
    done = horovodrun("-np", "1", script(tmp_path, first_line))
    assert done.returncode == 127
    assert said in done.stderr.decode()
    assert "\r" not in done.stderr.decode()


def test_no_ssh_client(tmp_path: Path) -> None:
    done = horovodrun("-np", "1", "-H", "no-such-host:1", "true", extra={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert (
        b"ssh cannot be run: No such file or directory. There is no ssh client on PATH here." in done.stderr
    )


def test_elastic_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--elastic", "-np", "2", "train"])
    assert caught.value.code == 2
    assert "unknown option --elastic. A job is elastic with --min-np N" in capsys.readouterr().err
    assert parse_command_line(["--elastic-t", "5", "train"]).variables == {"HOROVOD_ELASTIC_TIMEOUT": "5"}


def test_number_of_processes_behind_the_command() -> None:
    (notice,) = parse_command_line(["python", "train.py", "-np", "2"]).notices
    assert notice.endswith("horovodrun -np 2 python ...")
    assert parse_command_line(["-np", "2", "python", "train.py", "-np", "3"]).notices == ()
    assert parse_command_line(["python", "train.py", "-np", "fast"]).notices == ()


def test_dash_of_a_word_processor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["\u2013np", "2", "train"])
    assert caught.value.code == 2
    assert "Write -np or --np" in capsys.readouterr().err


def test_threads_that_may_not_be_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_commandline(["-np", "1", "true"]) == 1
    assert "answers the system call clone3 with EPERM" in capfd.readouterr().err


def test_log_level_that_is_none() -> None:
    (remark,) = remarks({"HOROVOD_LOG_LEVEL": "verbose"})
    assert remark.startswith(
        "HOROVOD_LOG_LEVEL=verbose is no level and means warning. Choose one of: trace, "
    )
    assert list(remarks({"HOROVOD_LOG_LEVEL": "Debug"})) == []

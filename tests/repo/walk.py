"""The walk from ``-np`` to the environment of a worker, and a job of two that is followed on it.

    python -m tests.repo.walk          # the functions that the job has gone through

A stay is a function in which the number or the environment takes another form (`FORMS`), or that waits for
one of these on the stack: a reader who follows an option steps through all of them, and no others. A change
of the walk goes into `WALK`, as the command above prints it.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

__all__ = ["FORMS", "WALK", "follow"]

_PACKAGE = Path(__file__).resolve().parents[2] / "src" / "horovod"
_AGENT = _PACKAGE / "launch" / "agent" / "bundle.py"
_VARIABLE = "FARANDOLE_TEST_WALK"
"""Names the file into which the processes of the job write their stays."""

FORMS = (
    "launch.options.command_line._give",  # words become values
    "launch.options.values.typed",  # values become options
    "launch.options.job.to_job",  # options become a job
    "launch.placement.hosts.assign_ranks",  # a job becomes ranks
    "launch.environment.slot_environment",  # a rank becomes variables of its own
    "launch.environment.job_environment",  # options become variables of all ranks
    "launch.agent_client.messages.plan_request",  # variables become a request to the agent
    "launch.agent.processes.spawn",  # a request becomes a process
)
WALK = (
    "launch.cli.run_commandline",
    "launch.options.command_line.parse_command_line",
    "launch.options.command_line._give",
    "launch.options.values.typed",
    "launch.cli._run",
    "launch.options.job.to_job",
    "launch.cli.with_restarts",
    "launch.run.run_job",
    "launch.contracts.job.Job.place",
    "launch.placement.hosts.assign_ranks",
    "launch.run._plan",
    "launch.environment.job_environment",
    "launch.run._workers",
    "launch.environment.slot_environment",
    "launch.launchers.local.LocalFleet.start",
    "launch.agent_client.messages.plan_request",
    "launch.agent.bundle.run_from_files",
    "launch.agent.program.main",
    "launch.agent.watch.Agent.run",
    "launch.agent.watch.Agent._obey",
    "launch.agent.watch.Agent._follow",
    "launch.agent.watch.Agent._begin",
    "launch.agent.watch.Agent._start",
    "launch.agent.watch.Agent._start_rank",
    "launch.agent.processes.spawn",
)


def follow() -> list[str]:
    """Run a job in this process, and return the functions it has gone through, in order."""
    from horovod.launch.cli import run_commandline
    from horovod.launch.launchers import local

    with tempfile.TemporaryDirectory() as folder:
        stays = Path(folder) / "stays"
        os.environ[_VARIABLE] = str(stays)
        local._AGENT = Path(__file__)
        _note(stays)
        status = run_commandline(["-np", "2", "true"])
        sys.setprofile(None)
        if status:
            raise RuntimeError(f"The job has ended with status {status}.")
        return list(dict.fromkeys(stays.read_text().split()))


def _note(stays: Path) -> None:
    """Append to a file the functions on the stack, from the outermost on, when one of `FORMS` is called."""

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _name(frame) in FORMS:
            found: list[str] = []
            caller: FrameType | None = frame
            while caller is not None:
                if (name := _name(caller)) and "<" not in name:  # those without a name are a part of others
                    found.append(name)
                caller = caller.f_back
            with stays.open("a") as file:
                file.writelines(f"{name}\n" for name in reversed(found))

    threading.setprofile(called)
    sys.setprofile(called)


def _name(frame: FrameType) -> str:
    """Name of a function of the package, from there on; empty: it is of somebody else."""
    path = frame.f_code.co_filename
    if not path.startswith(f"{_PACKAGE}{os.sep}"):
        return ""
    module = path[len(str(_PACKAGE)) + 1 :].removesuffix(".py").replace(os.sep, ".")
    return f"{module}.{frame.f_code.co_qualname}"


if __name__ == "__main__":
    if (_path := os.environ.get(_VARIABLE)) is None:
        print(*follow(), sep="\n")
    else:  # the agent, whose interpreter has neither this package nor its tests
        _note(Path(_path))
        runpy.run_path(str(_AGENT), run_name="__main__")

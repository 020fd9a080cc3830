"""``horovodrun``: from the command line to an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import horovod
from horovod.errors import ConfigError, HorovodError, LaunchError, WorkerFailed
from horovod.launch.allocations import find_allocation
from horovod.launch.console import Console
from horovod.launch.hosts import named
from horovod.launch.job import run_job
from horovod.launch.options import hosts_are_named, parse_command_line, rank_map, to_job

__all__ = ["exit_status", "run_commandline"]

_USAGE_STATUS = 2


def run_commandline(words: Sequence[str] | None = None) -> int:
    """Run ``horovodrun`` with `words` (default: the process's own arguments).

    Returns:
        The exit status: see ``horovodrun --help``.
    """
    _open_standard_descriptors()
    console = Console()
    try:
        arguments = parse_command_line(sys.argv[1:] if words is None else words)
        if arguments.version:
            print(horovod.__version__)
            return 0
        if arguments.completion:
            from horovod.launch.completion import completion_script

            print(completion_script(arguments.completion), end="")
            return 0
        if arguments.check_build:
            # Reading versions of distributions takes longer to import than all the rest together.
            from horovod.launch.check_build import build_report

            print(build_report(verbose=bool(arguments.verbose)), end="")
            return 0
        console = Console(verbose=bool(arguments.verbose))
        _run(arguments, console)
    except HorovodError as error:
        console.tell(str(error))
        if isinstance(error, WorkerFailed) and error.last_lines:
            console.tell("\n    ".join(["its last lines:", *error.last_lines]))
        return exit_status(error)
    return 0


def _run(arguments: argparse.Namespace, console: Console) -> None:
    for notice in arguments.notices:
        console.tell(notice)
    allocated = None if hosts_are_named(arguments) else find_allocation(os.environ)
    job = to_job(arguments, allocated)
    if allocated is not None:
        console.tell(f"hosts of {allocated.source}: {named(allocated.hosts)}")
    if arguments.dry_run:
        print(rank_map(job), end="")
        return
    if arguments.launcher not in (None, "ssh"):
        raise LaunchError(f"--launcher {arguments.launcher}: this version starts processes by ssh.")
    run_job(job, os.environ, console)


def exit_status(error: HorovodError) -> int:
    """What a command ends with after `error`: see ``horovodrun --help``."""
    if isinstance(error, ConfigError):
        return _USAGE_STATUS
    code = getattr(error, "exit_code", None)
    if not isinstance(code, int):
        return 1
    return 128 - code if code < 0 else code


def _open_standard_descriptors() -> None:
    # A closed one would be given to the next pipe, which would then be written to by mistake.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

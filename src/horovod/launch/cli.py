"""``horovodrun``: from the command line to an exit status."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.errors import HorovodError, LaunchError, WorkerFailed
from horovod.launch.contracts.errors import LauncherFailed, exit_status
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.registry import LAUNCHERS
from horovod.launch.launchers.choice import choose_launcher, look_around
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import rank_map, to_job
from horovod.launch.options.values import ElasticOptions, LaunchOptions
from horovod.launch.output.console import Console
from horovod.launch.placement.allocations import find_allocation
from horovod.launch.placement.hosts import Allocated, named
from horovod.launch.run import run_job
from horovod.launch.standard_input import with_input
from horovod.version import __version__

if TYPE_CHECKING:
    from horovod.launch.elastic.saved import Saved

__all__ = ["run_commandline", "with_restarts"]

_RESTARTS_VARIABLE = "HOROVOD_RESTART_COUNT"
"""Number of times that the job has been started again: 0 at first."""


def run_commandline(words: Sequence[str] | None = None) -> int:
    """Run ``horovodrun`` with `words` (default: the process's own arguments).

    Returns:
        The exit status: see ``horovodrun --help``.
    """
    _open_standard_descriptors()
    # Some programs have started us that ignore it: then nobody learns how a child of ours has ended.
    with suppress(ValueError):  # signals are the main thread's
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    console = Console()
    try:
        words = sys.argv[1:] if words is None else words
        options = parse_command_line(words)
        # Reading versions of distributions takes longer to import than all the rest together: only who asks
        # pays for it.
        if options.version:
            from horovod.launch.check_build import own_version

            _show(f"{__version__} ({own_version()})\n")
            return 0
        if options.completion:
            from horovod.launch.options.completion import completion_script

            _show(completion_script(options.completion))
            return 0
        if options.check_build:
            from horovod.launch.check_build import build_report

            report = build_report()
            _show(report.json() if options.json else report.text(verbose=options.verbose))
            return 0 if report.working else 1
        saved = None
        if options.resume is not None:
            saved, options = _resumed(options.resume)
            words = saved.words
        console = Console(verbose=options.verbose)
        if options.log_level is not None:
            level = {"TRACE": "DEBUG", "FATAL": "CRITICAL"}.get(options.log_level, options.log_level)
            logging.basicConfig(level=level, format="horovodrun: %(levelname)s: %(message)s")
        _run(options, console, words, saved)
    except HorovodError as error:
        console.tell(str(error))
        if (
            isinstance(error, WorkerFailed)
            and error.last_lines
            and not console.tracebacks.shows(error.last_lines)
        ):
            console.tell("\n    ".join(["its last lines:", *error.last_lines]))
        return exit_status(error)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        console.tell(
            "This process may not start threads. Either there is a limit on processes (ulimit -u), or a "
            "sandbox or tracer answers the system call clone3 with EPERM, as old container runtimes do: "
            "update it, or let it answer ENOSYS. With docker run --security-opt seccomp=unconfined you see "
            "whether that is it."
        )
        return 1
    return 0


def _resumed(path: str) -> tuple[Saved, LaunchOptions]:
    """The state of a job, and its options: read again in the directory and the environment it was given
    in. What leads to ssh keys is that of today.
    """
    from horovod.launch.elastic.saved import load

    file = Path(path).absolute()
    saved = load(file)
    today = {name: os.environ[name] for name in ("SSH_AUTH_SOCK", "SSH_AGENT_PID") if name in os.environ}
    try:
        os.chdir(saved.directory)
    except OSError as error:
        raise LaunchError(
            f"--resume {path}: the job was started in {saved.directory}: {error.strerror}."
        ) from error
    os.environ.clear()
    os.environ.update({**saved.environ, **today})
    options = parse_command_line(saved.words)
    elastic = (options.elastic or ElasticOptions())._replace(state=str(file))  # it may have been moved
    return saved, options._replace(elastic=elastic)


def _run(options: LaunchOptions, console: Console, words: Sequence[str], saved: Saved | None) -> None:
    allocated = None if options.finds_hosts else find_allocation(os.environ)
    notices = [*options.notices]
    job = to_job(options, allocated, notices.append)
    for notice in notices:
        console.tell(notice)
    if allocated is not None:
        console.tell(f"hosts of {allocated.source}: {named(allocated.hosts)}")
    launcher = choose_launcher(options.launcher, look_around(os.environ, options.launcher))
    job = replace(job, launcher=launcher)
    if not options.dry_run:
        job = with_input(job, options, console)
    if options.elastic is not None:
        _run_elastic(options, options.elastic, job, allocated, console, words, saved)
    elif options.dry_run:
        _tell_plan(job)
    else:
        with_restarts(
            options.max_restarts, lambda environ: run_job(job, environ, console), os.environ, console
        )


def with_restarts(
    most: int,
    run: Callable[[Mapping[str, str]], None],
    environ: Mapping[str, str],
    console: Console,
    done: int = 0,
) -> None:
    """Call ``run`` with the environment that ranks start from; again, ``most`` times, when a rank has failed.

    What cannot be helped by another start is not tried again: a command that cannot be run, hosts that cannot
    be reached, a signal to the launcher. ``done``: restarts that there have been.

    Raises:
        HorovodError: what ``run`` has raised last.
    """
    for restarts in range(done, most + 1):
        try:
            run({**environ, _RESTARTS_VARIABLE: str(restarts)} if most else environ)
            return
        except (WorkerFailed, LauncherFailed) as error:
            if restarts == most:
                raise
            console.tell(str(error))
            console.tell(f"starting the job again ({restarts + 1} of {most}: --max-restarts)")


def _run_elastic(
    options: LaunchOptions,
    elastic: ElasticOptions,
    job: Job,
    allocated: Allocated | None,
    console: Console,
    words: Sequence[str],
    saved: Saved | None,
) -> None:
    # Jobs that are not pay nothing for it.
    from horovod.launch.elastic.job import run_elastic_job
    from horovod.launch.elastic.options import elastic_of

    discovery = None
    if allocated is not None and allocated.slurm_job:
        from horovod.launch.elastic.slurm import SlurmHosts

        discovery = SlurmHosts(allocated.slurm_job, {host.name: host.slots for host in allocated.hosts})
    how = elastic_of(elastic, job, os.environ, discovery, options.has_hosts)
    if options.dry_run:
        _show(how.describe())
    else:
        left = [] if saved is None else [saved]

        def run(environ: Mapping[str, str]) -> None:
            before = left.pop() if left else None  # once: what follows is a new job
            run_elastic_job(job, how, environ, console, words=words, saved=before)

        with_restarts(
            options.max_restarts,
            run,
            os.environ,
            console,
            done=0 if saved is None else min(options.max_restarts, _restarts(saved.environ)),
        )


def _restarts(environ: Mapping[str, str]) -> int:
    count = environ.get(_RESTARTS_VARIABLE, "")
    return int(count) if count.isdecimal() else 0


def _tell_plan(job: Job) -> None:
    row = LAUNCHERS[job.launcher]
    if job.hosts or row.stays_here:
        _show(rank_map(job))
    if row.program:
        from horovod.launch.external.program import dry_line

        _show(shlex.join(dry_line(job, os.environ).words) + "\n")


def _show(text: str) -> None:
    """Print what was asked for. Who reads it may have enough before its end, as `head` has.

    Raises:
        LaunchError: it cannot be written for another reason.
    """
    try:
        print(text, end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python writes the rest at its end
        if not isinstance(error, BrokenPipeError):
            raise LaunchError(f"Cannot write to standard output: {error.strerror}.") from error


def _open_standard_descriptors() -> None:
    # A closed one would be given to the next pipe, which would then be written to by mistake.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

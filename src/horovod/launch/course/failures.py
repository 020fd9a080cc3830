"""Why a job has failed, in sentences: what it raises at its end."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.contracts.errors import CommandNotStarted, JobInterrupted, LauncherFailed
from horovod.launch.contracts.events import HostLost, Refused
from horovod.launch.contracts.signals import signal_name
from horovod.launch.course.passing import listed
from horovod.launch.driver.causes import RankOutcome, describe_exit
from horovod.launch.driver.fixed import Outcome
from horovod.launch.placement.addresses import names_of_this_machine
from horovod.launch.programs import find_program

__all__ = ["command_not_started", "hint_for", "raise_for", "why_unreported"]

_HINTS: Mapping[int, str] = {
    signal.SIGKILL: "If nobody killed it, the machine may be out of memory: see the kernel's log (dmesg).",
    signal.SIGSEGV: "PYTHONFAULTHANDLER=1 in the environment shows where a Python program crashed.",
    signal.SIGBUS: "Often there is no room left in /dev/shm or on a disk that a file is mapped from.",
}
# What Python says of a package that is missing, with an exception or without (`python -m horovod.demo`).
_NO_PACKAGE = re.compile(r"No module named (?:'horovod'|horovod$)")
_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# What env and shells say of an interpreter whose name ends with a carriage return.
_CARRIAGE_RETURN = re.compile(r"(\\r|\r)['’”\"]?(: (No such file|not found|command not found)|$)")
_MOST_LINE_BYTES = 512


def raise_for(outcome: Outcome, program: str, tail: Callable[[int], tuple[str, ...]]) -> None:
    """Raise what `run_job` promises, if the job has failed. `tail`: the last lines of a rank."""
    stuck = ""
    if outcome.survivors:
        listed = ", ".join(str(pid) for pid in outcome.survivors)
        stuck = f" Even SIGKILL did not end these processes: {listed}."
    if outcome.refused is not None:
        raise command_not_started(outcome.refused, program, outcome.hosts[outcome.refused.rank])
    if outcome.failure is not None:
        raise _worker_failed(outcome, outcome.failure, program, tail, stuck)
    if outcome.error is not None:
        raise outcome.error
    if outcome.lost and outcome.signum is None:
        raise _host_lost(outcome, outcome.lost[0], tail)
    if outcome.signum is not None:
        raise JobInterrupted(
            f"{signal_name(outcome.signum)} ended the job after {outcome.elapsed_s:.1f} s.{stuck}",
            signum=outcome.signum,
        )
    if stuck:
        raise LaunchError(f"All ranks succeeded.{stuck}")


def _worker_failed(
    outcome: Outcome, failure: RankOutcome, program: str, tail: Callable[[int], tuple[str, ...]], stuck: str
) -> WorkerFailed:
    host = outcome.hosts[failure.rank]
    sentence = _describe_failure(failure, host, outcome.elapsed_s) + _others_ended(outcome.ended)
    for lost in outcome.lost:
        sentence += f". Host {lost.host} was lost besides: {lost.reason}"
    last_lines = tail(failure.rank)
    hint = hint_for(failure.exit_code or 0, program, host, last_lines)
    return WorkerFailed(
        f"{sentence}.{stuck}{' ' if hint else ''}{hint}",
        rank=failure.rank,
        host=host,
        exit_code=failure.exit_code or 1,
        last_lines=last_lines,
    )


def hint_for(exit_code: int, program: str, host: str, last_lines: Sequence[str]) -> str:
    """Advice for a rank that has ended so; empty if nothing is known."""
    if exit_code == 127 and any(_CARRIAGE_RETURN.search(line) for line in last_lines):
        how = _WITHOUT_RETURNS.format(program)
        return f"The first line of {program} seems to end with a carriage return. {how}"
    return _HINTS.get(-exit_code, "") or _wrong_python(program, host, last_lines)


_WITHOUT_RETURNS = "It was written on Windows: sed -i 's/\\r$//' {}"


def _wrong_python(program: str, host: str, last_lines: Sequence[str]) -> str:
    """Name the Python of the command and the one that has this package, if a rank could not import it."""
    if not any(_NO_PACKAGE.search(line) for line in last_lines):
        return ""
    ours = sys.executable
    if host not in names_of_this_machine([host]):
        return (
            f"The Python that {program} means on {host} has no horovod. Install it there, or name another "
            f"Python in the command; here {ours} has it."
        )
    found = find_program(program, os.environ)
    if found is None or os.path.dirname(found) == os.path.dirname(ours):
        return ""
    if not _PYTHON.fullmatch(os.path.basename(found)):
        return f"The Python that runs {found} has no horovod; {ours} has it."
    activate = os.path.join(os.path.dirname(ours), "activate")
    first = f"Activate its environment (. {activate})" if os.path.exists(activate) else "Put it first on PATH"
    return f"{program} means {found} here, which has no horovod; {ours} has it. {first}, or name it there."


def why_unreported(
    launcher: str,
    status: int | None,
    hosts: Mapping[int, str],
    missing_before: Sequence[int],
    missing: Sequence[int],
    first_lost: int,
) -> LaunchError | None:
    """Why a job of another `launcher` has failed, when no rank has said so; None: it has not.

    Args:
        status: of the launcher's program; None: it had to be ended.
        hosts: of each rank; empty: not all had started.
        missing_before: ranks that had not told their end before they were ended, `missing`: that never did.
        first_lost: whose connection ended first, -1: nobody's.
    """
    end = "had to be ended" if status is None else describe_exit(status)
    if not missing_before:
        if not status:
            return None
        return LauncherFailed(
            f"every rank reported success, but {launcher} {end}: see its messages above.", exit_code=status
        )
    if not hosts:
        return LauncherFailed(
            f"{launcher} {end} before all ranks had started: see its messages above.", exit_code=status or 1
        )
    gone = missing or missing_before
    many = len(gone) > 1
    where = ", ".join(dict.fromkeys(hosts[rank] for rank in gone))
    sentence = f"{listed(gone)} on {where} did not report {'their' if many else 'its'} end ({launcher} {end})"
    first = first_lost if first_lost in gone else gone[0]
    of_many = f" The first that was lost is rank {first}." if many and first_lost == first else ""
    return WorkerFailed(
        f"{sentence}{_others_ended(len(missing_before) - len(gone))}.{of_many} "
        "The host may have died, or the processes were killed.",
        rank=first,
        host=hosts[first],
        exit_code=status or 1,
    )


def _describe_failure(failure: RankOutcome, host: str, elapsed_s: float) -> str:
    """Describe what happened to the rank that failed first, without the end of the sentence."""
    if failure.stopped:
        return (
            f"rank {failure.rank} on {host} was stopped by a signal, and was ended after {elapsed_s:.1f} s: "
            f"the other ranks have lost it, and have ended. Rank {failure.told_by} had {failure.text}"
        )
    sentence = f"rank {failure.rank} on {host} {describe_exit(failure.exit_code)} after {elapsed_s:.1f} s"
    if failure.exit_code == 0:
        return f"{sentence}, while other ranks still needed it"
    if failure.because is not None:
        sentence += f", because of rank {failure.because}"
    if failure.told_by is not None:
        sentence += f", and rank {failure.told_by} needed it"
        return (
            f"{sentence}: the script of rank {failure.told_by} {failure.text}" if failure.text else sentence
        )
    return f"{sentence}: its script {failure.text}" if failure.text else sentence


def _host_lost(outcome: Outcome, lost: HostLost, tail: Callable[[int], tuple[str, ...]]) -> WorkerFailed:
    ranks = ", ".join(str(rank) for rank in lost.ranks)
    many = len(lost.ranks) > 1
    sentence = f"host {lost.host} was lost after {outcome.elapsed_s:.1f} s: {lost.reason}"
    if lost.ranks:
        sentence += f". It ran rank{'s' if many else ''} {ranks}{_others_ended(outcome.ended)}"
    for other in outcome.lost[1:]:
        sentence += f". Host {other.host} was lost, too: {other.reason}"
    rank = lost.ranks[0] if lost.ranks else -1
    return WorkerFailed(f"{sentence}.", rank=rank, host=lost.host, exit_code=1, last_lines=tail(rank))


def _others_ended(count: int) -> str:
    if count < 1:
        return ""
    others = "the other rank was" if count == 1 else f"{count} other ranks were"
    return f"; {others} ended because of it"


def command_not_started(refused: Refused, command: str, host: str) -> CommandNotStarted:
    """Why `command` could not be run on `host`, and what to try."""
    where = "" if host in names_of_this_machine([host]) else f" on {host}"
    status = 127 if refused.errno in (errno.ENOENT, errno.ENOTDIR) else 126
    if status == 127:
        why, what = _not_found(command)
    elif refused.errno == errno.ENOEXEC:
        why, what = "it is neither a program nor a script with an interpreter in its first line", ""
    else:
        why, what = os.strerror(refused.errno).lower(), ""
    words = command.split()
    if status == 127 and (variable := _ASSIGNMENT.match(command)):
        what = (
            f"Variables stand in front of horovodrun ({variable[0]}... horovodrun ...), or behind env: "
            f"horovodrun ... env {command} ..."
        )
    elif status == 127 and len(words) > 1 and find_program(words[0], os.environ) is not None:
        what = f"Did you mean several words? Leave out the quotes: {command}"
    elif command.endswith(".py"):
        here = "" if os.path.exists(command) else f" There is no such file in {_folder()}, though."
        what = f"Did you mean: python {command}?{here}"
    elif refused.errno == errno.EACCES and os.path.isfile(command):
        what = f"Is it a script? Then make it executable: chmod +x {command}"
    return CommandNotStarted(
        f"The command {command} cannot be run{where}: {why}. {what}".rstrip(), exit_code=status
    )


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "this folder, which has been deleted"


def _interpreter_of(path: str) -> str:
    """The interpreter that the first line of a script names; empty: none."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_MOST_LINE_BYTES)
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].rstrip(b"\n").strip(b" \t").split(b" ", 1)
    return os.fsdecode(words[0]) if words else ""


def _not_found(command: str) -> tuple[str, str]:
    """Why a command was not found, and what to do."""
    exists = os.path.isfile(command)
    path = command if "/" in command else find_program(command, os.environ)
    if path is not None and (interpreter := _interpreter_of(path)):
        if interpreter.endswith("\r"):
            why = f"its first line names the interpreter {interpreter!r}, with a carriage return"
            return why, _WITHOUT_RETURNS.format(path)
        if not os.path.exists(interpreter):
            why = f"its interpreter was not found: {interpreter}, which its first line names"
            return why, f"Correct the line, or name an interpreter: python {path}"
    if "/" in command:
        if exists:
            return "its interpreter was not found", "Look at its first line."
        return "not found", "Check its spelling."
    if exists:
        return "not found on PATH, but in this folder", f"Did you mean: ./{command}?"
    return "not found", "Check its spelling and PATH."

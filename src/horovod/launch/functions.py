"""``horovod.run``: call a function in every process of a job, and collect what it returns.

The function travels as cloudpickle in a folder that only this user can open, and so do the results; the
processes are started and watched exactly as by ``horovodrun``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from horovod.errors import ConfigError, HorovodInternalError, LaunchError, WorkerFailed
from horovod.launch.console import Console
from horovod.launch.hosts import parse_hostfile, parse_hosts
from horovod.launch.job import Job, run_job

__all__ = ["call_in_worker", "run"]

_FUNCTION = "function"
_NOT_YET: Mapping[str, str] = {
    "min_num_proc": "this version runs a fixed number of processes; give num_proc and hosts",
    "max_num_proc": "this version runs a fixed number of processes; give num_proc and hosts",
    "slots": "this version runs a fixed number of processes; give num_proc and hosts",
    "reset_limit": "this version runs a fixed number of processes; give num_proc and hosts",
    "cooldown_range": "this version runs a fixed number of processes; give num_proc and hosts",
    "host_discovery_script": "this version runs a fixed number of processes; give num_proc and hosts",
    "ssh_port": "this version starts processes on this machine only",
    "ssh_identity_file": "this version starts processes on this machine only",
    "network_interfaces": "this version starts processes on this machine only",
    "use_mpi": "this version does not start processes through MPI",
    "mpi_args": "this version does not start processes through MPI",
}


def run(
    func: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Any = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` in ``num_proc`` processes of one job; return the results by rank.

    Args:
        func: any callable that cloudpickle can carry; local functions and closures, too.
        num_proc: how many processes.
        hosts: ``localhost:4``; by default ``num_proc`` slots on this machine.
        hostfile: a file with hosts in place of ``hosts``.
        start_timeout: seconds that the processes may take to find each other.
        output_filename: folder for what the ranks print, as ``horovodrun --output-filename``.
        verbose: tell on standard error what happens.
        executable: Python for the processes; by default this one.
        np: old name of ``num_proc``, as ``min_np``, ``max_np`` and ``network_interface`` are of others.
        disable_cache, use_gloo: accepted; this is the case anyway.

    Raises:
        ValueError: arguments that exclude each other, or hosts that cannot be read.
        LaunchError: an argument that this version does not serve; the result of a rank is missing.
        WorkerFailed: a rank failed (a ``RuntimeError``); the others were ended. Its cause is the exception
            of the function, if it could be carried, and the message ends with its traceback.
    """
    if np is not None:
        num_proc = _renamed("np", "num_proc", np)
    given = {
        "min_num_proc": min_num_proc if min_np is None else _renamed("min_np", "min_num_proc", min_np),
        "max_num_proc": max_num_proc if max_np is None else _renamed("max_np", "max_num_proc", max_np),
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "network_interfaces": network_interfaces
        if network_interface is None
        else _renamed("network_interface", "network_interfaces", network_interface),
        "use_mpi": use_mpi or None,
        "mpi_args": mpi_args,
    }
    if use_gloo and use_mpi:
        raise ConfigError("horovod.run: use_gloo and use_mpi exclude each other.")
    if hosts is not None and hostfile is not None:
        raise ConfigError("horovod.run: hosts and hostfile exclude each other.")
    for name, value in given.items():
        if value is not None:
            raise LaunchError(f"horovod.run: {name}: {_NOT_YET[name]}.")
    if num_proc < 1:
        raise ConfigError(f"horovod.run: num_proc must be at least 1, not {num_proc}.")
    placed = parse_hosts(hosts) if hosts is not None else ()
    if hostfile is not None:
        placed = parse_hostfile(Path(hostfile).read_text(encoding="utf-8"), hostfile)
    with tempfile.TemporaryDirectory(prefix="rueda-run-") as name:  # readable by its owner alone
        folder = Path(name)
        call = (func, tuple(args), dict(kwargs or {}))
        (folder / _FUNCTION).write_bytes(cloudpickle.dumps(call))
        job = Job(
            command=(executable or sys.executable, "-m", "horovod.runner.run_task", name),
            processes=num_proc,
            hosts=placed,
            options={} if start_timeout is None else {"HOROVOD_START_TIMEOUT": str(start_timeout)},
            output_directory=Path(output_filename) if output_filename else None,
        )
        # What only the launching process can import (a notebook's folder) must be found by the others.
        inherited = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            run_job(job, inherited, _console(verbose))
        except WorkerFailed as failure:
            _explain(failure, folder)
            raise
        return [_result(folder, rank) for rank in range(num_proc)]


def call_in_worker(folder: Path, rank: int) -> None:
    """The part of a rank: call the function and leave what it returned.

    Raises:
        Exception: that of the function, or that its result cannot be pickled; it is left for the launching
            process, too.
    """
    func, args, kwargs = cloudpickle.loads((folder / _FUNCTION).read_bytes())
    try:
        _leave(folder / f"result.{rank}", cloudpickle.dumps(func(*args, **kwargs)))
    except BaseException as error:
        text = traceback.format_exc()
        try:
            carried = cloudpickle.dumps((error, text))
        except Exception:  # some exceptions hold what cannot be pickled: the text has to do
            carried = cloudpickle.dumps((None, text))
        _leave(folder / f"error.{rank}", carried)
        raise


def _leave(file: Path, data: bytes) -> None:
    """All of it or nothing."""
    part = file.with_suffix(file.suffix + ".part")
    part.write_bytes(data)
    part.rename(file)


def _result(folder: Path, rank: int) -> Any:
    file = folder / f"result.{rank}"
    if not file.exists():
        raise LaunchError(f"horovod.run: rank {rank} ended without an error, but before it had a result.")
    return cloudpickle.loads(file.read_bytes())


def _explain(failure: WorkerFailed, folder: Path) -> None:
    """Put the exception of the function behind the failure of its process."""
    file = folder / f"error.{failure.rank}"
    if not file.exists():
        return
    try:
        error, text = cloudpickle.loads(file.read_bytes())
    except Exception as unreadable:  # the class of the exception may not be importable here
        error, text = HorovodInternalError(f"the exception of rank {failure.rank} cannot be read here"), ""
        error.__cause__ = unreadable
    failure.args = (f"{failure.args[0]}\n{text}".rstrip(), *failure.args[1:])
    failure.__cause__ = error


def _console(verbose: int | None) -> Console:
    # A notebook shows what goes through its own streams, not what is written to the descriptors.
    return Console(
        verbose=bool(verbose),
        stdout=None if sys.stdout is sys.__stdout__ else sys.stdout,
        stderr=None if sys.stderr is sys.__stderr__ else sys.stderr,
    )


def _renamed(old: str, new: str, value: Any) -> Any:
    warnings.warn(f"horovod.run: {old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    return value

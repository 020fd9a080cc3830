"""``horovod.run``: call a function in every process of a job, and collect what it returns.

The processes are started and watched exactly as by ``horovodrun``. The call goes to the agent of each host
once, whose ranks read it from one piece of memory; what a rank returns or raises comes back through a pipe
of its own. Nothing is written to a file. What other hosts send home is read without unpickling (`plain`), as
a pickle runs code here.
"""

from __future__ import annotations

import mmap
import os
import shlex
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from horovod.bootstrap.place.interpreter import PATH_VARIABLE, as_here, module_words
from horovod.errors import ConfigError, HorovodInternalError, LaunchError, WorkerFailed
from horovod.launch.calls.modules import install_sources, local_sources
from horovod.launch.calls.pickles import ALIGNMENT, pack, unpack
from horovod.launch.calls.plain import NotPlain, is_plain, pack_plain, plain_error, unpack_error, unpack_plain
from horovod.launch.contracts.job import Job, RankResults, SshOptions
from horovod.launch.elastic.discovery import HostDiscovery
from horovod.launch.launchers.choice import choose_launcher, look_around
from horovod.launch.options.values import ElasticOptions
from horovod.launch.output.console import Console, TextSink
from horovod.launch.placement.hosts import named_hosts
from horovod.launch.run import run_job
from horovod.runtime.ending import describe_text, harmless

__all__ = [
    "DESCRIPTORS_VARIABLE",
    "answer",
    "call_environment",
    "call_in_worker",
    "explain_failure",
    "explained",
    "interface_names",
    "pack_call",
    "result_of",
    "run",
    "unpack_call",
]

DESCRIPTORS_VARIABLE = "HOROVOD_RUN_DESCRIPTORS"
_NEEDS = struct.Struct("<Q")
_LINES = "\n\t"
_MOST_TEXT = 1 << 16  # of a traceback


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
    *,
    env: Mapping[str, str | None] | None = None,
    stdout: TextSink | None = None,
    stderr: TextSink | None = None,
    unpickle_results: bool = False,
    discovery: HostDiscovery | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` in ``num_proc`` processes of one job; return the results by rank.

    With ``min_num_proc``, ``host_discovery_script`` or ``discovery`` the job is elastic: hosts come and go.

    Args:
        func: any callable that cloudpickle can carry; local functions and closures, too. Modules of this
            process that are not installed, and those beside the main script, travel with it.
        args, kwargs: large arrays and tensors go to each host once; its processes share their memory, until
            they write to it.
        num_proc: how many processes.
        min_num_proc: elastic: go on with as few processes after failures. Then the results are those of the
            first ``min_num_proc`` ranks of the last world.
        max_num_proc: elastic: grow to so many; by default to all slots.
        slots: elastic: slots of hosts that the script names without a number.
        reset_limit: elastic: changes of the world that are allowed; by default any number.
        cooldown_range: elastic: a failed host is used again after so many seconds, from the first to the
            second number, longer each time; by default never.
        host_discovery_script: elastic: a command that prints ``host`` or ``host:slots``, one a line.
        hosts: ``server1:2,server2:2``; by default ``num_proc`` slots on this machine. Others are reached by
            ssh.
        hostfile: a file with hosts in place of ``hosts``.
        ssh_port, ssh_identity_file, network_interfaces: as the options of ``horovodrun``.
        start_timeout: seconds that the processes may take to find each other.
        output_filename: folder for what the ranks print, as ``horovodrun --output-filename``.
        verbose: tell on standard error what happens.
        executable: Python for the processes; by default this one.
        np: old name of ``num_proc``, as ``min_np``, ``max_np`` and ``network_interface`` are of others.
        env: variables for the processes, over those of this one; None takes one away.
        stdout, stderr: text streams for what the processes print; by default this process's own.
        discovery: elastic: asked for the hosts, in place of a script.
        unpickle_results: results of other hosts may be of any type: they are unpickled here, so whoever has
            one of those hosts can run code in this process.
        use_mpi, mpi_args: let ``mpirun`` start the processes, with these words besides.
        disable_cache, use_gloo: accepted; this is the case anyway.

    Raises:
        ValueError: arguments that exclude each other, or hosts that cannot be read.
        LaunchError: an argument that this version does not serve; the result of a rank is missing, or is of a
            type that is not taken from another host.
        WorkerFailed: a rank failed (a ``RuntimeError``); the others were ended. Its cause is the exception
            of the function, if it could be carried (from other hosts: one of Python's own), and the message
            ends with its traceback.
    """
    num_proc = num_proc if np is None else _renamed("np", "num_proc", np)
    if use_gloo and use_mpi:
        raise ConfigError("horovod.run: use_gloo and use_mpi exclude each other.")
    if hosts is not None and hostfile is not None:
        raise ConfigError("horovod.run: hosts and hostfile exclude each other.")
    placed = named_hosts(hosts, hostfile)
    min_num_proc = min_num_proc if min_np is None else _renamed("min_np", "min_num_proc", min_np)
    max_num_proc = max_num_proc if max_np is None else _renamed("max_np", "max_num_proc", max_np)
    elastic = min_num_proc is not None or host_discovery_script is not None or discovery is not None
    if not elastic:
        _refuse_elastic(
            max_num_proc=max_num_proc, slots=slots, reset_limit=reset_limit, cooldown_range=cooldown_range
        )
    if num_proc < 1:
        raise ConfigError(f"horovod.run: num_proc must be at least 1, not {num_proc}.")
    if network_interface is not None:
        network_interfaces = _renamed("network_interface", "network_interfaces", network_interface)
    environment = call_environment(env)
    job = Job(
        command=(executable or sys.executable, *module_words("horovod.runner.run_task")),
        processes=num_proc,
        hosts=placed,
        launcher=choose_launcher("mpirun", look_around(environment, "mpirun")) if use_mpi else "ssh",
        arguments=tuple(shlex.split(mpi_args or "")),
        options={} if start_timeout is None else {"HOROVOD_START_TIMEOUT": str(start_timeout)},
        output_directory=Path(output_filename) if output_filename else None,
        ssh=SshOptions(port=ssh_port, identity_file=ssh_identity_file),
        interfaces=interface_names(network_interfaces),
        call=pack_call(func, args, kwargs or {}),
    )
    options = ElasticOptions(
        min_num_proc=min_num_proc,
        max_num_proc=max_num_proc,
        host_discovery_script=host_discovery_script,
        slots_per_host=slots,
        reset_limit=reset_limit,
        blacklist_cooldown_range=cooldown_range,
    )
    console = _console(verbose, stdout, stderr)
    return _run(job, options if elastic else None, environment, console, discovery, unpickle_results)


@contextmanager
def explained(results: RankResults, unpickle_results: bool) -> Iterator[None]:
    """Let the failure of a rank say what its function has raised."""
    try:
        yield
    except WorkerFailed as failure:
        if failure.rank is not None:
            trusted = unpickle_results or failure.rank in results.here
            explain_failure(failure, results.sent.get(failure.rank), trusted=trusted)
        raise


def _run(
    job: Job,
    options: ElasticOptions | None,
    environment: Mapping[str, str],
    console: Console,
    discovery: HostDiscovery | None,
    unpickle_results: bool,
) -> list[Any]:
    """Run a job, and return the results of its ranks."""
    results, wanted = RankResults(), job.processes
    with explained(results, unpickle_results):
        if options is None:
            run_job(job, environment, console, results)
        else:
            # Jobs that are not elastic pay nothing for it.
            from horovod.launch.elastic.job import run_elastic_job
            from horovod.launch.elastic.options import elastic_of

            how = elastic_of(options, job, environment, discovery, named=bool(job.hosts))
            wanted = how.rules.least
            run_elastic_job(job, how, environment, console, results)
    return [
        result_of(results.sent.get(rank), rank, trusted=unpickle_results or rank in results.here)
        for rank in range(wanted)
    ]


def _refuse_elastic(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"horovod.run: {name} means something in an elastic job only: give min_num_proc, "
                "host_discovery_script or discovery, too."
            )


def call_in_worker(call_descriptor: int, result_descriptor: int) -> None:
    """The part of a rank: call the function and send home what it returned.

    Args:
        call_descriptor: memory with what :func:`pack_call` made.
        result_descriptor: a pipe for the result.

    Raises:
        Exception: that of the function, or that its result cannot be pickled; it is sent home, too.
    """
    try:
        pieces = _value_of(_private_memory(call_descriptor))
    except BaseException as error:
        _send(result_descriptor, _failure_of(error))
        raise
    _send(result_descriptor, pieces)


def answer(call: memoryview) -> tuple[list[memoryview], BaseException | None]:
    """Call what :func:`pack_call` has made ``call`` of, which may be written to. For processes that somebody
    else has started.

    Returns:
        What is to be sent home, and what the function has raised.
    """
    try:
        return _value_of(call), None
    except BaseException as error:
        return _failure_of(error), error


def _value_of(call: memoryview) -> list[memoryview]:
    func, args, kwargs = unpack_call(call)
    value = func(*args, **kwargs)
    try:
        return pack_plain((True, value))
    except NotPlain:
        return pack((True, value))


def _failure_of(error: BaseException) -> list[memoryview]:
    """Bytes of the exception that is being handled."""
    text = traceback.format_exc()
    try:
        pickled = b"".join(pack(error))
    except Exception:  # some exceptions hold what cannot be pickled: the text has to do
        pickled = b""
    return pack_plain((False, (*plain_error(error), text, pickled)))


def pack_call(func: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[memoryview]:
    """A call, the modules that it may need, and the version of Python that it was made by, as bytes.

    Raises:
        Exception: that of what cannot be pickled.
    """
    needs = pack((sys.version_info[:2], local_sources()))
    size = sum(piece.nbytes for piece in needs)
    head = [memoryview(_NEEDS.pack(size)), *needs, memoryview(bytes(-(_NEEDS.size + size) % ALIGNMENT))]
    return head + pack((func, tuple(args), dict(kwargs)))


def unpack_call(data: memoryview) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function and its arguments that :func:`pack_call` has made ``data`` of, which may be written to.
    The modules that came with it can be imported from then on.

    Raises:
        LaunchError: another version of Python made it.
    """
    (size,) = _NEEDS.unpack_from(data)
    end = _NEEDS.size + size
    version, sources = unpack(data[_NEEDS.size : end])
    if version != sys.version_info[:2]:
        ours, theirs = (".".join(map(str, each)) for each in (sys.version_info[:2], version))
        raise LaunchError(
            f"The call was made by Python {theirs}, but {sys.executable} on this host is Python {ours}: "
            "functions go between equal versions only. The argument `executable` names another one."
        )
    install_sources(sources)
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = unpack(data[end + -end % ALIGNMENT :])
    return call


def _private_memory(descriptor: int) -> memoryview:
    """Map ``descriptor``: all ranks of the host share it, but for the pages that this one writes."""
    with os.fdopen(descriptor, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _send(descriptor: int, pieces: Iterable[memoryview]) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for piece in pieces:
            left = piece.cast("B")
            while left:
                left = left[file.write(left) or 0 :]


def result_of(data: bytearray | None, rank: int, *, trusted: bool) -> Any:
    """Result of a rank's function, from the bytes that the rank has sent home. ``trusted``: they may be a
    pickle.

    Raises:
        LaunchError: it has sent none, or a pickle that is not trusted, or cannot be read here.
    """
    if not data:
        raise LaunchError(f"horovod.run: rank {rank} ended without an error, but before it had a result.")
    if is_plain(memoryview(data)):
        succeeded, value = _said(unpack_plain(memoryview(data)))
        if not succeeded:
            raise LaunchError(
                f"horovod.run: the function has raised {_name_of_error(value)} on rank {rank}, so it has no "
                "result, though the process has ended without an error. Return in place of calling "
                "sys.exit()."
            )
        return value
    if not trusted:
        raise LaunchError(
            f"horovod.run: the result of rank {rank}, which runs on another host, is pickled, and unpickling "
            "runs code here. Return numbers, texts, bytes, NumPy arrays, or lists, tuples and dicts of them; "
            "or trust all hosts of the job: run(..., unpickle_results=True)."
        )
    try:
        _, value = unpack(memoryview(data))
    except Exception as error:
        raise LaunchError(
            f"The result of rank {rank} cannot be read here: {type(error).__name__}: {error}. Can this "
            "process import what it is made of?"
        ) from error
    return value


def _name_of_error(said: Any) -> str:
    match said:
        case (str(name), _, _, _):
            return describe_text(name)
    return "something"


def _said(value: Any) -> tuple[bool, Any]:
    if type(value) is not tuple or len(value) != 2 or type(value[0]) is not bool:
        raise LaunchError("What a rank sent home is no result.")
    return value


def explain_failure(failure: WorkerFailed, data: bytearray | None, *, trusted: bool) -> None:
    """Put the exception of the function behind the failure of its process."""
    if not data or not is_plain(memoryview(data)):
        return  # a result: the process failed after the function
    succeeded, value = _said(unpack_plain(memoryview(data)))
    if succeeded:
        return
    match value:
        case (str(name), arguments, str(text), bytes(pickled)):
            error = unpack_error(name, arguments)
        case _:
            raise LaunchError(f"What rank {failure.rank} sent home is no exception.") from failure
    if trusted and pickled:
        try:
            error = unpack(memoryview(bytearray(pickled)))
        except Exception as unreadable:  # the class of the exception may not be importable here
            error = HorovodInternalError(f"the exception of rank {failure.rank} cannot be read here")
            error.__cause__ = unreadable
    failure.args = (f"{failure.args[0]}\n{harmless(text, _LINES)[-_MOST_TEXT:]}".rstrip(), *failure.args[1:])
    failure.__cause__ = error


def call_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Environment that processes of a call start from: the one of this process, with ``changes``."""
    # What only the launching process can import (a notebook's folder) is found by the others on this host.
    environment = as_here()
    if "PYTHONPATH" in (changes or {}):
        del environment[PATH_VARIABLE]
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def interface_names(named: Iterable[str] | str | None) -> tuple[str, ...]:
    """Names of network interfaces, from an argument of a call: a list, or a text with commas."""
    names = named.split(",") if isinstance(named, str) else named or ()
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def _console(verbose: int | None, stdout: TextSink | None, stderr: TextSink | None) -> Console:
    # A notebook shows what goes through its own streams, not what is written to the descriptors.
    return Console(
        verbose=bool(verbose),
        stdout=stdout or (None if sys.stdout is sys.__stdout__ else sys.stdout),
        stderr=stderr or (None if sys.stderr is sys.__stderr__ else sys.stderr),
    )


def _renamed(old: str, new: str, value: Any) -> Any:
    warnings.warn(f"horovod.run: {old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    return value

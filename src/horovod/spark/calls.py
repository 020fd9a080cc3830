"""Calls of functions in the tasks of a Spark job, by all ranks: ``horovod.spark.run`` and ``run_elastic``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.bootstrap.place.interpreter import PATH_VARIABLE, module_words
from horovod.errors import ConfigError, LaunchError
from horovod.launch.calls.functions import explained, interface_names, pack_call, result_of
from horovod.launch.calls.pickles import why_unpicklable
from horovod.launch.contracts.job import Job, RankResults
from horovod.launch.elastic.job import run_elastic_job
from horovod.launch.elastic.options import elastic_of
from horovod.launch.options.values import ElasticOptions
from horovod.launch.output.console import Console, TextSink
from horovod.launch.output.streams import STREAMS
from horovod.launch.run import run_job
from horovod.spark.stage import SparkTasks, active_context

__all__ = ["SparkCall", "packed", "run", "run_elastic"]

_START_VARIABLE = "HOROVOD_SPARK_START_TIMEOUT"
_START_S = 600.0
_ELASTIC_VARIABLE = "HOROVOD_ELASTIC_TIMEOUT"
_COMMAND = module_words("horovod.runner.run_task")
# Settings of the driver that its ranks have, too; those of its own place or job are replaced.
_FORWARDED = ("HOROVOD_", "NCCL_")
_ALL_STEPS = 2


def run(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: TextSink | None = None,
    stderr: TextSink | None = None,
    verbose: int = 1,
    nics: Iterable[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    *,
    barrier: bool | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` in the tasks of a Spark job, which are the ranks of one world; return the
    results by rank.

    Args:
        fn: any callable that cloudpickle can carry. Modules of the driver that are not installed travel with
            it.
        args, kwargs: of ``fn``; they go to the executors once, as a broadcast variable if they are large.
        num_proc: how many processes, one for each task; by default ``spark.default.parallelism``.
        start_timeout: seconds that the tasks may take to start; by default ``HOROVOD_SPARK_START_TIMEOUT``,
            or 600.
        use_gloo: accepted; this is the case anyway.
        env: variables for the processes over those of their executor and the driver's own ``HOROVOD_*`` and
            ``NCCL_*``; None takes one away.
        stdout, stderr: text streams for what the processes print, with ``[rank]<stdout>:`` before each line;
            by default that stays in the logs of the executors.
        verbose: 0: say nothing, 1: how many processes there are, 2: every step.
        nics: network interfaces that may be used; by default those that work.
        prefix_output_with_timestamp: the time before each line.
        executable: Python for the processes; by default that of the tasks.
        barrier: tasks start together or not at all, as a barrier stage. None: unless
            ``spark.dynamicAllocation.enabled``, with which Spark has no such stages.

    Raises:
        LaunchError: there is no SparkContext, or it has too few slots; ``fn`` cannot be pickled; the Spark
            job failed or was cancelled.
        StoreTimeout: not all tasks have come in time.
        WorkerFailed: a rank failed (a ``RuntimeError``); the others were ended. Its cause is the exception of
            ``fn``, and the message ends with its traceback.
        JobInterrupted: Ctrl-C, or another signal.
    """
    if use_mpi or extra_mpi_args:
        warnings.warn(
            "horovod.spark.run: use_mpi and extra_mpi_args have no effect: Spark's tasks run the ranks, "
            "without mpirun. The results are the same.",
            stacklevel=2,
        )
    call = SparkCall(
        "horovod.spark.run",
        fn,
        tuple(args),
        dict(kwargs or {}),
        num_proc=num_proc,
        start_timeout=start_timeout,
        env=dict(env or {}),
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=interface_names(nics),
        timestamps=prefix_output_with_timestamp,
        executable=executable or "",
        barrier=barrier,
    )
    return call.run()


def run_elastic(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: TextSink | None = None,
    stderr: TextSink | None = None,
    verbose: int = 1,
    nics: Iterable[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` in Spark tasks that may be lost and come back; return the results of the
    last world, by rank. ``fn`` calls a function of ``hvd.elastic.run``.

    The tasks are those of an ordinary stage. Each attempt of a task is a host of its own with one slot: the
    local size is 1, and a task that Spark tries again is a new host. Set ``spark.task.maxFailures`` high
    (``horovod.spark.conf``), and let ``reset_limit`` bound the job.

    Args:
        num_proc: tasks that have to be there before training starts; by default the parallelism of Spark.
        min_num_proc: go on with as few; by default ``num_proc``.
        max_num_proc: so many tasks are asked for; by default ``num_proc``.
        start_timeout: as for :func:`horovod.spark.run`.
        elastic_timeout: seconds that enough tasks are waited for, at the start and after each failure; by
            default ``HOROVOD_ELASTIC_TIMEOUT``, or 600.
        reset_limit: changes of the world that are allowed; by default any number.
        min_np, max_np: old names.
        The others are those of :func:`horovod.spark.run`.

    Raises:
        LaunchError: there is no SparkContext; too few tasks came in time; Spark gave the tasks up.
        WorkerFailed: the last world failed, first by this rank.
        JobInterrupted: Ctrl-C, or another signal.
    """
    min_num_proc = _renamed("min_np", "min_num_proc", min_np, min_num_proc)
    max_num_proc = _renamed("max_np", "max_num_proc", max_np, max_num_proc)
    call = SparkCall(
        "horovod.spark.run_elastic",
        fn,
        tuple(args),
        dict(kwargs or {}),
        num_proc=num_proc,
        start_timeout=start_timeout,
        env=dict(env or {}),
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=interface_names(nics),
        timestamps=prefix_output_with_timestamp,
        barrier=False,
    )
    console = call.console()
    job = call.job(console, most=max_num_proc)
    most = job.processes if max_num_proc is None else max_num_proc
    if most < job.processes:
        raise ConfigError(
            f"horovod.spark.run_elastic: max_num_proc={most} is less than num_proc={job.processes}."
        )
    environment = call.environment()
    if elastic_timeout is None and os.environ.get(_ELASTIC_VARIABLE):
        environment[_ELASTIC_VARIABLE] = os.environ[_ELASTIC_VARIABLE]
    elif elastic_timeout is not None:
        environment[_ELASTIC_VARIABLE] = f"{float(elastic_timeout):g}"
    options = ElasticOptions(
        min_num_proc=min_num_proc,
        max_num_proc=most,
        reset_limit=reset_limit,
        failure_domain="host",  # a task that has failed is tried again, and is another host then
    )
    assert isinstance(job.tasks, SparkTasks)
    how = elastic_of(options, job, environment, job.tasks.discovery)
    results = RankResults()
    with explained(results, unpickle_results=True):
        run_elastic_job(job, how, environment, console, results)
    return call.results(results, how.rules.least)


@dataclass
class SparkCall:
    """A call in the tasks of a Spark job. ``what``: the function that was asked for it, in messages; the
    others are arguments of :func:`run`.

    Attributes:
        own_gpus: see `TaskSource`.
        logged: streams that are written to the executors' logs; None: those that are not asked for.
        listeners: see `Job`.
    """

    what: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    num_proc: int | None = None
    start_timeout: float | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    stdout: TextSink | None = None
    stderr: TextSink | None = None
    verbose: int = 1
    nics: tuple[str, ...] = ()
    timestamps: bool = False
    executable: str = ""
    barrier: bool | None = None
    own_gpus: bool = False
    logged: Sequence[str] | None = None
    listeners: Mapping[str, Callable[[str, Any], None]] = field(default_factory=dict)

    def run(self) -> list[Any]:
        """See :func:`run`."""
        console = self.console()
        job = self.job(console)
        results = RankResults()
        with explained(results, unpickle_results=True):
            run_job(job, self.environment(), console, results)
        return self.results(results, job.processes)

    def console(self) -> Console:
        """For what ranks print, as far as it is wanted, and for our own words."""
        discard = _Discard()
        return Console(
            verbose=self.verbose >= _ALL_STEPS,
            stdout=self.stdout or discard,
            stderr=self.stderr or discard,
            # A notebook shows what goes through its own stream, not what is written to the descriptor.
            words=sys.stderr,
        )

    def job(self, console: Console, *, most: int | None = None) -> Job:
        """Make the job that the launcher runs, with at most ``most`` tasks; by default one for each process.

        Raises:
            LaunchError: there is no SparkContext, or the call cannot be pickled.
            ConfigError: an argument makes no sense.
        """
        context = active_context(self.what)
        processes = int(context.defaultParallelism) if self.num_proc is None else self.num_proc
        if self.verbose >= 1:
            chosen = ", the default parallelism of Spark" if self.num_proc is None else ""
            console.tell(f"{self.what}: {processes} processes{chosen}")
        if processes < 1:
            raise ConfigError(f"{self.what}: num_proc must be at least 1, not {processes}.")
        barrier = self.barrier
        if barrier is None:
            dynamic = str(context.getConf().get("spark.dynamicAllocation.enabled", "false"))
            barrier = dynamic.lower() != "true"
        start_s = self._start_s()
        logged = self.logged
        if logged is None:
            asked = {"stdout": self.stdout, "stderr": self.stderr}
            logged = [stream for stream in STREAMS if asked[stream] is None]
        tasks = SparkTasks(
            context,
            most or processes,
            barrier=barrier,
            what=self.what,
            tell=console.tell,
            interfaces=self.nics,
            logged=logged,
            without=[name for name, value in self.env.items() if value is None],
            own_gpus=self.own_gpus,
            executable=self.executable,
        )
        return Job(
            command=("python", *_COMMAND),
            processes=processes,
            launcher="spark",
            options={"HOROVOD_START_TIMEOUT": f"{start_s:g}"},
            timestamps=self.timestamps,
            interfaces=self.nics,
            status=False,
            call=packed(self.what, self.fn, self.args, self.kwargs),
            tasks=tasks,
            listeners=self.listeners,
        )

    def environment(self) -> dict[str, str]:
        """Variables that ranks get on top of the environment of their executor."""
        ours = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}
        given = {**ours, **self.env}
        for name, value in given.items():
            if not (isinstance(name, str) and (value is None or isinstance(value, str))):
                raise ConfigError(f"{self.what}: env must have texts, not {name!r}: {value!r}.")
        if given.get("PYTHONPATH") is not None:
            given[PATH_VARIABLE] = ""  # in place of where the task imports from
        return {name: value for name, value in given.items() if value is not None}

    def results(self, results: RankResults, count: int) -> list[Any]:
        """By rank. They may be pickles: the driver unpickles what tasks return anyway (``collect``), and only
        they have the key.
        """
        return [result_of(results.sent.get(rank), rank, trusted=True) for rank in range(count)]

    def _start_s(self) -> float:
        given: Any = self.start_timeout
        if given is None:
            given = os.environ.get(_START_VARIABLE) or _START_S
        try:
            start_s = float(given)
        except (TypeError, ValueError):
            start_s = 0.0
        if not start_s > 0.0:
            raise ConfigError(f"{self.what}: the start time-out must be a number of seconds, not {given!r}.")
        return start_s


def packed(
    what: str, fn: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> list[memoryview]:
    """A call as bytes.

    Raises:
        LaunchError: it cannot be pickled; says which part.
    """
    try:
        return pack_call(fn, args, kwargs)
    except Exception as error:
        raise LaunchError(f"{what}: {why_unpicklable(fn, args, kwargs, error)}") from error


class _Discard:
    """A stream that drops what is written to it."""

    def write(self, text: str, /) -> object:
        return None

    def flush(self) -> object:
        return None


def _renamed(old: str, new: str, value: int | None, given: int | None) -> int | None:
    if value is None:
        return given
    warnings.warn(f"run_elastic: {old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    return value

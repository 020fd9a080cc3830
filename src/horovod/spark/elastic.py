"""``horovod.spark.run_elastic``: tasks come and go, and with them the ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from horovod.errors import ConfigError
from horovod.launch.calls.functions import explained, interface_names
from horovod.launch.contracts.job import Results
from horovod.launch.elastic.job import run_elastic_job
from horovod.launch.elastic.options import elastic_of
from horovod.launch.options.values import ElasticOptions
from horovod.launch.output.console import TextSink
from horovod.spark.stage import SparkTasks
from horovod.spark.static import SparkCall

__all__ = ["run_elastic"]

_TIMEOUT_VARIABLE = "HOROVOD_ELASTIC_TIMEOUT"


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
    if elastic_timeout is None and os.environ.get(_TIMEOUT_VARIABLE):
        environment[_TIMEOUT_VARIABLE] = os.environ[_TIMEOUT_VARIABLE]
    elif elastic_timeout is not None:
        environment[_TIMEOUT_VARIABLE] = f"{float(elastic_timeout):g}"
    options = ElasticOptions(
        min_num_proc=min_num_proc,
        max_num_proc=most,
        reset_limit=reset_limit,
        failure_domain="host",  # a task that has failed is tried again, and is another host then
    )
    assert isinstance(job.tasks, SparkTasks)
    how = elastic_of(options, job, environment, job.tasks.discovery)
    results = Results()
    with explained(results, unpickle_results=True):
        run_elastic_job(job, how, environment, console, results)
    return call.results(results, how.rules.least)


def _renamed(old: str, new: str, value: int | None, given: int | None) -> int | None:
    if value is None:
        return given
    warnings.warn(f"run_elastic: {old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    return value

"""Backends of a training: its processes run in the tasks of a Spark job, or on the driver's machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import horovod
from horovod.errors import InvalidArgumentError
from horovod.launch.output.console import TextSink
from horovod.spark.calls import run
from horovod.spark.stage import active_context

__all__ = ["Backend", "LocalBackend", "SparkBackend", "default_num_proc"]


def default_num_proc() -> int:
    """The default parallelism of the active SparkContext.

    Raises:
        LaunchError: there is none.
    """
    return int(active_context("default_num_proc()").defaultParallelism)


class Backend(ABC):
    """Runs a function in several processes that form a world."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` in every process; returns the results by rank.

        Args:
            env: variables for the processes; None takes one away. It is left as it is.

        Raises:
            WorkerFailed: a process failed (a ``RuntimeError``); the exception of ``fn`` is its cause.
        """

    @abstractmethod
    def num_processes(self) -> int:
        """Number of processes that the training will have."""


class _Started(Backend):
    """Starts its processes by a function of this package, which takes their number and ``options``, too."""

    def __init__(
        self,
        start: Callable[..., list[Any]],
        num_proc: int | None,
        env: Mapping[str, str | None] | None,
        options: Mapping[str, Any],
    ) -> None:
        if num_proc is not None and num_proc < 1:
            raise InvalidArgumentError(f"{type(self).__name__}: num_proc must be at least 1, not {num_proc}.")
        self._start = start
        self._num_proc = num_proc
        self._env = dict(env or {})
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> list[Any]:
        environment = {**self._env, **(env or {})}
        return self._start(fn, args, kwargs, num_proc=self.num_processes(), env=environment, **self._options)

    def num_processes(self) -> int:
        return default_num_proc() if self._num_proc is None else self._num_proc


class SparkBackend(_Started):
    """The tasks of a Spark job, by :func:`horovod.spark.run`.

    Args:
        num_proc: how many; by default the parallelism of the SparkContext.
        env: as for ``run``, under what ``run`` is given itself.
        **options: further arguments of ``horovod.spark.run``: ``stdout``, ``stderr``, ``verbose``, ``nics``,
            ``start_timeout``, ``prefix_output_with_timestamp``, ``executable``, ``barrier`` ...
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str | None] | None = None, **options: Any
    ) -> None:
        super().__init__(run, num_proc, env, options)


class LocalBackend(_Started):
    """Processes on the driver's machine, without a Spark job, by :func:`horovod.run`.

    Args:
        num_proc: how many.
        env, stdout, stderr, verbose: as for ``horovod.run``.
    """

    def __init__(
        self,
        num_proc: int = 1,
        env: Mapping[str, str | None] | None = None,
        *,
        stdout: TextSink | None = None,
        stderr: TextSink | None = None,
        verbose: int | None = None,
    ) -> None:
        super().__init__(horovod.run, num_proc, env, {"stdout": stdout, "stderr": stderr, "verbose": verbose})

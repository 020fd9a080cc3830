"""``HorovodRunner``, as users of Databricks know it, on any Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from horovod.bootstrap.place.interpreter import module_words
from horovod.errors import ConfigError
from horovod.launch.calls.functions import call_environment, explained, result_of
from horovod.launch.contracts.job import Job, RankResults
from horovod.launch.output.console import Console, TextSink
from horovod.launch.output.streams import STREAMS
from horovod.launch.placement.allocations import usable_gpus
from horovod.launch.run import run_job
from horovod.spark import sparkdl_shim
from horovod.spark.calls import SparkCall, packed
from horovod.spark.log import LOG, listener
from horovod.spark.stage import active_context, has_fixed_slots

__all__ = ["HorovodRunner"]

_VERBOSITIES = ("all", "log_callback_only")
_MOST_SHOWN_BYTES = 4 << 20


class HorovodRunner:
    """Runs a training function in several processes that form a world.

    Args:
        np: ``-n``: n processes on the driver's machine, without a Spark job; what they print is shown.
            ``n``: n tasks of one Spark job that start together, each with a GPU if Spark assigns GPUs.
        driver_log_verbosity: of tasks: ``"all"`` shows what they print here, up to 4 MB;
            ``"log_callback_only"`` what they send by ``log_to_driver`` and ``LogCallback``. All of it is in
            the logs of the executors, on standard error.

    Raises:
        TypeError: ``np`` is no whole number.
        ValueError: it is 0, or the verbosity is unknown.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise TypeError(f"HorovodRunner: np must be a whole number, not {np!r}.")
        if np == 0:
            raise ConfigError(
                "HorovodRunner: np=0 meant all slots of the cluster, which change. Say how many: np=4 for "
                "tasks of Spark, np=-4 for processes on this machine."
            )
        if driver_log_verbosity not in _VERBOSITIES:
            raise ConfigError(
                f"HorovodRunner: driver_log_verbosity must be one of {', '.join(_VERBOSITIES)}, not "
                f"{driver_log_verbosity!r}."
            )
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` in every process; returns what it returned on rank 0.

        Args:
            main: goes to the processes by cloudpickle: import inside of it what it needs, and make there what
                cannot be pickled. Modules that are not installed travel with it.

        Raises:
            LaunchError: there is no SparkContext, or it has too few slots; ``main`` cannot be pickled.
            StoreTimeout: not all tasks have come in time.
            WorkerFailed: a process failed (a ``RuntimeError``); its cause is the exception of ``main``.
        """
        listeners = {LOG: listener(_Output(sys.stdout))}
        if self.num_processor < 0:
            return _run_here(-self.num_processor, main, kwargs, listeners)
        context = active_context("HorovodRunner")
        shown = self.driver_log_verbosity == "all"
        limited = _Limited(sys.stdout) if shown else None
        call = SparkCall(
            "HorovodRunner",
            _Main(main, sparkdl_shim.is_installed()),
            (),
            kwargs,
            num_proc=self.num_processor,
            stdout=limited,
            stderr=limited,
            verbose=0,
            barrier=True,
            own_gpus=True,
            # There the log of the only executor is what the driver shows.
            logged=() if shown and has_fixed_slots(context) else STREAMS,
            listeners=listeners,
        )
        return call.run()[0]


class _Main:
    """The function in a rank, which may import what the driver could."""

    def __init__(self, main: Callable[..., Any], shim: bool) -> None:
        self._main = main
        self._shim = shim

    def __call__(self, **kwargs: Any) -> Any:
        if self._shim:
            from horovod.spark import sparkdl_shim

            sparkdl_shim.install()
        return self._main(**kwargs)


def _run_here(
    processes: int,
    main: Callable[..., Any],
    kwargs: Mapping[str, Any],
    listeners: Mapping[str, Callable[[str, Any], None]],
) -> Any:
    stdout: TextSink | None = None if sys.stdout is sys.__stdout__ else sys.stdout
    stderr: TextSink | None = None if sys.stderr is sys.__stderr__ else sys.stderr
    console = Console(stdout=stdout, stderr=stderr)
    gpus = usable_gpus(os.environ)
    if 0 < gpus < processes:
        console.tell(
            f"HorovodRunner: np={-processes} is more than the {gpus} GPUs of this machine: ranks share them"
        )
    call = packed("HorovodRunner", _Main(main, sparkdl_shim.is_installed()), (), kwargs)
    job = Job(
        command=(sys.executable, *module_words("horovod.runner.run_task")),
        processes=processes,
        call=call,
        status=False,
        listeners=listeners,
    )
    results = RankResults()
    with explained(results, unpickle_results=True):
        run_job(job, call_environment(), console, results)
    return result_of(results.sent.get(0), 0, trusted=True)


class _Output:
    """A stream of the driver that may change or close meanwhile: messages must not end the store."""

    def __init__(self, stream: TextSink) -> None:
        self._stream = stream

    def write(self, text: str, /) -> object:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return None

    def flush(self) -> object:
        try:
            return self._stream.flush()
        except (OSError, ValueError):
            return None


class _Limited(_Output):
    """Shows so much, and then says where the rest is."""

    def __init__(self, stream: TextSink) -> None:
        super().__init__(stream)
        self._left = _MOST_SHOWN_BYTES

    def write(self, text: str, /) -> object:
        if self._left <= 0:
            return None
        size = len(text.encode("utf-8", "replace"))
        if size <= self._left:
            self._left -= size
            return super().write(text)
        whole_lines, _, _ = text[: self._left].rpartition("\n")
        self._left = 0
        return super().write(
            f"{whole_lines}\nHorovodRunner: the output is truncated here, after 4 MB. All of it is in the "
            "logs of the executors, on standard error.\n"
        )
